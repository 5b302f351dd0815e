"""Ansible action `primus_host_env`: run the program host-env (primus_bootstrap/launch) on a host, and install it first if needed.

An unchanged host needs one command over the connection. The program is one file that the controller builds; it is copied only if the host
has none or another version. In check mode it runs from the task's temporary folder, which is removed. ansible.builtin.script would copy the
program on every run and keep nothing on the host, and ansible.builtin.setup does not detect GPU models.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

_OUTDATED = 76


class ActionModule(ActionBase):
    """Arguments: `program` (path on the host), `sysfs_root`, `site` (what primus_bootstrap/launch/detect/site.py reads).

    With `detect_only`, it changes and reports nothing, and returns the GPUs as `detected`. For roles that run before gpu_env.
    """

    _VALID_ARGS = frozenset({"program", "sysfs_root", "site", "detect_only"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return changed, the differences and the verdicts. A verdict `fail` fails the task with its reason and fix."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        python = str((task_vars or {}).get("ansible_python_interpreter") or "")
        self._python = python if python.startswith("/") else "python3"
        detect_only = boolean(self._task.args.get("detect_only", False))
        self._read_only = detect_only or self._task.check_mode
        program = str(self._task.args["program"])
        local, digest = _local_program()
        outdated = f"echo {shlex.quote(f'{digest}  {program}')} | sha256sum --check --status 2>/dev/null || exit {_OUTDATED}; "
        answer = self._low_level_execute_command(outdated + self._command(program), in_data=self._site(), executable="/bin/sh")
        installed = answer["rc"] == _OUTDATED
        if installed:
            answer = self._install_and_run(local, program)
        output = _parse(answer, program)
        return {**result, **(_detected(output) if detect_only else _report(output, program, installed=installed))}

    def _command(self, program: str) -> str:
        check = ["--check"] if self._read_only else []
        sysfs = str(self._task.args.get("sysfs_root") or "/")
        return "exec " + shlex.join([self._python, program, "host-env", "--json", "--site", "-", "--sysfs", sysfs, *check])

    def _site(self) -> bytes:
        """Return the input as JSON for standard input: every account can read argument lists."""
        return json.dumps(self._task.args.get("site") or {}).encode()

    def _install_and_run(self, local: Path, program: str) -> dict[str, Any]:
        """Copy the program to the host and run it; if nothing may change, from the temporary folder."""
        self._make_tmp_path()
        shell = self._connection._shell  # noqa: SLF001 - ActionBase has no public accessor
        try:
            remote = self._transfer_file(str(local), shell.join_path(shell.tmpdir, local.name))
            self._fixup_perms2((shell.tmpdir, remote))
            command = self._command(remote)
            if not self._read_only:
                target, new = shlex.quote(program), shlex.quote(f"{program}.new")
                steps = [
                    f"install -d -m 0755 {shlex.quote(str(Path(program).parent))}",
                    f"install -o root -g root -m 0755 {shlex.quote(remote)} {new}",
                    f"mv -f {new} {target}",
                    self._command(program),
                ]
                command = " && ".join(steps)
            answer: dict[str, Any] = self._low_level_execute_command(command, in_data=self._site(), executable="/bin/sh")
        finally:
            self._remove_tmp_path(shell.tmpdir)
        return answer


def _parse(answer: dict[str, Any], program: str) -> dict[str, Any]:
    """Return the program's output; fail if there is none or it is an error."""
    try:
        output: dict[str, Any] = json.loads(answer["stdout"].strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        what = (answer["stderr"] or answer["stdout"]).strip() or f"no output, exit code {answer['rc']}"
        raise AnsibleActionFail(f"{program} failed: {what}. Fix: install python3 (3.9 or later) on the host") from error
    if "error" in output:
        raise AnsibleActionFail(f"{output['error']['what']}. Fix: {output['error']['fix']}")
    return output


def _detected(output: dict[str, Any]) -> dict[str, Any]:
    """Return the task's result of a detection only, with the reasons of the GPU checks that did not pass."""
    reasons = [record.get("reason", "") for record in output["verdicts"] if record["check"] in {"gpu_model", "gpu_count"}]
    found = {name: output[name] for name in ("verdict", "vendor", "model", "count")}
    return {"changed": False, "detected": {**found, "reason": "; ".join(filter(None, reasons))}}


def _report(output: dict[str, Any], program: str, *, installed: bool) -> dict[str, Any]:
    """Return the task's result with differences and verdicts."""
    failed = [record for record in output["verdicts"] if record["verdict"] == "fail"]
    difference = [{"before_header": program, "after_header": program, "before": "", "after": "(new version of the program)\n"}]
    failure = "; ".join(f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in failed)
    return {
        **{name: output[name] for name in ("verdict", "vendor", "model", "count", "network")},
        "changed": bool(output["changed"] or installed),
        # For tasks/verify.yml, which reports no change.
        "outdated": bool(output["changed"] or installed),
        "diff": output["diff"] + (difference if installed else []),
        "stdout": json.dumps({"verdicts": output["verdicts"]}),
        **({"failed": True, "msg": failure} if failed else {}),
    }


def _local_program() -> tuple[Path, str]:
    """Return the program, built once per run in Ansible's temporary folder, and its SHA-256."""
    try:
        from primus_bootstrap.launch import zipapp_file  # noqa: PLC0415 - if it is missing, the error has a fix
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    path = Path(constants.DEFAULT_LOCAL_TMP) / "primus-launch.pyz"
    return path, zipapp_file.digest(path.read_bytes()) if path.is_file() else zipapp_file.write_zipapp(path)
