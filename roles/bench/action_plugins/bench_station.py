"""Begin a bench, judge it, and decide who serves, on the controller: the Ansible action `bench_station`."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
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
    """`begin` empties the folder of the last bench; `judge` says what to measure again; `decide` writes decisions, history and reports."""

    _VALID_ARGS = frozenset({"state", "folder", "policy_file", "tier", "hosts", "fleet", "limit_percent", "cluster"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the tiers at the begin, and at the end the verdicts that people have to see."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if station is None:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {MISSING}. Fix: {fix}")
        args = self._task.args
        try:
            desk = station.Desk(Path(args["folder"]))
            if args["state"] == "begin":
                return {**result, "changed": False, "tiers": desk.begin(str(args["policy_file"]), str(args["tier"]))}
            case = station.Case(
                hosts=tuple(args["hosts"]),
                fleet=int(args["fleet"]),
                policy_file=str(args["policy_file"]),
                tier=str(args["tier"]),
                limit_percent=float(args["limit_percent"]),
                cluster=str(args["cluster"]),
            )
            if args["state"] == "judge":
                return {**result, "changed": False, "again": desk.judge(case)}
            shown = desk.decide(case)
        except PrimusError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        return {**result, "changed": False, "msg": json.dumps({"verdicts": shown})}
