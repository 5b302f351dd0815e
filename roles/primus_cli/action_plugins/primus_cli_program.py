"""Ansible action `primus_cli_program`: build primus-cli with the training programs as one file, and copy it to a host.

ansible.builtin.copy does the copying; this plugin builds the file once per run.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Argument: `program` (path on the host). Builds are reproducible, so an unchanged host stays unchanged."""

    _VALID_ARGS = frozenset({"program"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of copying the file."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        program = str(self._task.args["program"])
        task = self._task.copy()
        task.args = {"src": str(_local_program()), "dest": program, "owner": "root", "group": "root", "mode": "0755"}
        copy = self._shared_loader_obj.action_loader.get(
            "ansible.legacy.copy",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        copied: dict[str, Any] = copy.run(task_vars=task_vars)
        note = {"before_header": program, "after_header": program, "before": "", "after": "(new version of the program)\n"}
        return {**result, **copied, "diff": [note] if copied.get("changed") else []}


def _local_program() -> Path:
    """Return the program, built once per run in Ansible's temporary folder."""
    try:
        from primus_bootstrap.launch import zipapp_file  # noqa: PLC0415 - if it is missing, the error has a fix
        from primus_bootstrap.launch.runtimes import self_exec  # noqa: PLC0415 - as above
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    path = Path(constants.DEFAULT_LOCAL_TMP) / "primus-cli.pyz"
    if not path.is_file():
        zipapp_file.write_zipapp(path, workloads=self_exec.workloads_folder("", os.environ))
    return path
