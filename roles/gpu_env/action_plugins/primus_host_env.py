"""Run the program host-env (primus_bootstrap/launch) on a host: the Ansible action `primus_host_env`.

An unchanged host costs one command over the connection. The program is one file that is made here and put on the host, root-owned, only
where the host has none or another one; in check mode it is run from the task's temporary folder and nothing is left behind.
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
_ARGUMENTS = frozenset({"program", "sysfs_root", "site"})


class ActionModule(ActionBase):
    """Arguments: `program` (path on the host), `sysfs_root`, `site` (what primus_bootstrap/launch/detect/site.py reads)."""

    _VALID_ARGS = _ARGUMENTS

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return changed, differences, and the verdicts; a failing verdict fails the task with its reason and fix."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        python = str((task_vars or {}).get("ansible_python_interpreter") or "")
        self._python = python if python.startswith("/") else "python3"
        program = str(self._task.args["program"])
        local, digest = _made_here()
        outdated = f"echo {shlex.quote(f'{digest}  {program}')} | sha256sum --check --status 2>/dev/null || exit {_OUTDATED}; "
        answer = self._low_level_execute_command(outdated + self._command(program), in_data=self._site(), executable="/bin/sh")
        installed = answer["rc"] == _OUTDATED
        if installed:
            answer = self._install_and_run(local, program)
        return {**result, **self._judge(answer, program, installed=installed)}

    def _command(self, program: str) -> str:
        check = ["--check"] if self._task.check_mode else []
        sysfs = str(self._task.args.get("sysfs_root") or "/")
        return "exec " + shlex.join([self._python, program, "host-env", "--json", "--site", "-", "--sysfs", sysfs, *check])

    def _site(self) -> bytes:
        """Return the site's input for standard input: values may be long, and an argument list can be read by everybody."""
        return json.dumps(self._task.args.get("site") or {}).encode()

    def _install_and_run(self, local: Path, program: str) -> dict[str, Any]:
        """Bring the program to the host and run it; in check mode from the temporary folder."""
        self._make_tmp_path()
        shell = self._connection._shell  # noqa: SLF001 - what ActionBase itself offers no accessor for
        try:
            remote = self._transfer_file(str(local), shell.join_path(shell.tmpdir, local.name))
            self._fixup_perms2((shell.tmpdir, remote))
            command = self._command(remote)
            if not self._task.check_mode:
                there, new = shlex.quote(program), shlex.quote(f"{program}.new")
                steps = [
                    f"install -d -m 0755 {shlex.quote(str(Path(program).parent))}",
                    f"install -o root -g root -m 0755 {shlex.quote(remote)} {new}",
                    f"mv -f {new} {there}",
                    self._command(program),
                ]
                command = " && ".join(steps)
            answer: dict[str, Any] = self._low_level_execute_command(command, in_data=self._site(), executable="/bin/sh")
        finally:
            self._remove_tmp_path(shell.tmpdir)
        return answer

    def _judge(self, answer: dict[str, Any], program: str, *, installed: bool) -> dict[str, Any]:
        """Turn the program's answer into the task's result."""
        try:
            output = json.loads(answer["stdout"].strip().splitlines()[-1])
        except (IndexError, ValueError) as error:
            what = (answer["stderr"] or answer["stdout"]).strip() or f"it printed nothing and ended with {answer['rc']}"
            raise AnsibleActionFail(
                f"{program} did not run: {what}. Fix: see that the host has python3 (3.9 or later) and runs it"
            ) from error
        if "error" in output:
            raise AnsibleActionFail(f"{output['error']['what']}. Fix: {output['error']['fix']}")
        failed = [record for record in output["verdicts"] if record["verdict"] == "fail"]
        difference = [{"before_header": program, "after_header": program, "before": "", "after": "(program brought to its version)\n"}]
        failure = "; ".join(f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in failed)
        return {
            **{name: output[name] for name in ("verdict", "vendor", "model", "count", "network")},
            "changed": bool(output["changed"] or installed),
            # What `verify` asks: it changes nothing, and so reports no change.
            "outdated": bool(output["changed"] or installed),
            "diff": output["diff"] + (difference if installed else []),
            "stdout": json.dumps({"verdicts": output["verdicts"]}),
            **({"failed": True, "msg": failure} if failed else {}),
        }


def _made_here() -> tuple[Path, str]:
    """Return the program, made once a run in Ansible's own temporary folder, and its SHA-256."""
    try:
        from primus_bootstrap.launch import zipapp_file  # noqa: PLC0415 - where it is missing the error has a fix
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    path = Path(constants.DEFAULT_LOCAL_TMP) / "primus-launch.pyz"
    return path, zipapp_file.digest(path.read_bytes()) if path.is_file() else zipapp_file.write_zipapp(path)
