"""Ansible action `primus_gpu_detect`: detect the GPUs of a host with the program of primus_bootstrap/launch. Changes nothing.

The role gpu_env installs the program, but runs after this role. If the host has no program or another version, the action copies it for one
call. ansible.builtin.setup does not detect GPU models.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_OUTDATED = 76


class ActionModule(ActionBase):
    """Arguments: `program` (path on the host), `sysfs_root`."""

    _VALID_ARGS = frozenset({"program", "sysfs_root"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return verdict, vendor, model, count and reason."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        named = str((task_vars or {}).get("ansible_python_interpreter") or "")
        self._python = named if named.startswith("/") else "python3"
        program = str(self._task.args["program"])
        local, digest = _local_program()
        outdated = f"echo {shlex.quote(f'{digest}  {program}')} | sha256sum --check --status 2>/dev/null || exit {_OUTDATED}; "
        answer = self._low_level_execute_command(outdated + self._command(program), in_data=b"{}", executable="/bin/sh")
        if answer["rc"] == _OUTDATED:
            answer = self._copy_and_run(local)
        return {**result, "changed": False, "detected": _parse(answer)}

    def _command(self, program: str) -> str:
        sysfs = str(self._task.args.get("sysfs_root") or "/")
        return "exec " + shlex.join([self._python, program, "host-env", "--check", "--json", "--site", "-", "--sysfs", sysfs])

    def _copy_and_run(self, local: Path) -> dict[str, Any]:
        self._make_tmp_path()
        shell = self._connection._shell  # noqa: SLF001 - ActionBase has no public accessor
        try:
            remote = self._transfer_file(str(local), shell.join_path(shell.tmpdir, local.name))
            self._fixup_perms2((shell.tmpdir, remote))
            answer: dict[str, Any] = self._low_level_execute_command(self._command(remote), in_data=b"{}", executable="/bin/sh")
        finally:
            self._remove_tmp_path(shell.tmpdir)
        return answer


def _parse(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the detected GPUs from the program's output."""
    try:
        output = json.loads(answer["stdout"].strip().splitlines()[-1])
        reasons = [record.get("reason", "") for record in output["verdicts"] if record["check"] in {"gpu_model", "gpu_count"}]
        return {**{name: output[name] for name in ("verdict", "vendor", "model", "count")}, "reason": "; ".join(filter(None, reasons))}
    except (IndexError, ValueError, KeyError, TypeError) as error:
        what = (answer["stderr"] or answer["stdout"]).strip() or f"no output, exit code {answer['rc']}"
        raise AnsibleActionFail(f"the GPU detection failed: {what}. Fix: install python3 (3.9 or later) on the host") from error


def _local_program() -> tuple[Path, str]:
    """Return the program, built once per run in Ansible's temporary folder, and its SHA-256."""
    try:
        from primus_bootstrap.launch import zipapp_file  # noqa: PLC0415 - if it is missing, the error has a fix
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    path = Path(constants.DEFAULT_LOCAL_TMP) / "primus-launch.pyz"
    return path, zipapp_file.digest(path.read_bytes()) if path.is_file() else zipapp_file.write_zipapp(path)
