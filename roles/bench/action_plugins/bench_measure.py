"""Measure one host, and keep what it said in the controller's folder: the Ansible action `bench_measure`."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

try:
    from primus_bootstrap.bench import station
    from primus_bootstrap.errors import PrimusError
except ImportError as error:  # said where it is needed, with a fix
    station, MISSING = None, error


class ActionModule(ActionBase):
    """Arguments: those of the tasks file measure.yml. Only a host that is due, or that is to be measured again, is touched."""

    _VALID_ARGS = frozenset(
        {"folder", "policy_file", "tier", "force", "seen", "program", "expected", "storage_folder", "round", "launcher"}
    )

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return how many steps were run; what they found is in the folder."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if station is None:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {MISSING}. Fix: {fix}")
        args, host = self._task.args, str((task_vars or {})["inventory_hostname"])
        asked = station.Asked(
            tier=str(args["tier"]),
            policy_file=str(args["policy_file"]),
            program=str(args["program"]),
            storage_folder=str(args["storage_folder"]),
            force=bool(args["force"]),
        )
        try:
            desk = station.Desk(Path(args["folder"]))
            if int(args["round"]) == 0:
                desk.keep_seen(host, dict(args["seen"]))
            steps = desk.steps(host, asked, round_=int(args["round"]))
            if steps:
                measured = self._execute_module(
                    module_name="bench_node",
                    module_args={"state": "measure", "steps": steps, "expected": args["expected"]},
                    task_vars=task_vars,
                )
                if "steps" not in measured:
                    return {**result, **measured}
                desk.keep_measured(host, measured["steps"], now=float(measured["now"]))
        except PrimusError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        return {**result, "changed": False, "steps": len(steps)}
