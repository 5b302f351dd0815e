"""Ansible action `bench_evaluation`: start a bench on the controller, evaluate its results, and decide which hosts pass."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ActionModule(ActionBase):
    """Uses `primus_bootstrap.bench` on the controller, so it cannot be a module.

    `begin` clears the results of the previous bench. `rerun` returns the round of repeated measurements, 0 if there is none. `next` reads
    a round of runs over several hosts and returns the next one; `more` is false after the last. `decide` writes decisions, history and
    reports.
    """

    _VALID_ARGS = frozenset({"state", "folder", "policy_file", "tier", "hosts", "fleet", "limit_percent", "cluster", "present", "at_once"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the tiers for `begin`, and the reported verdicts for `decide`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.bench import finalize  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.bench.fabric.session import next_round  # noqa: PLC0415
            from primus_bootstrap.bench.judging.evaluation import BenchedFleet  # noqa: PLC0415
            from primus_bootstrap.bench.results.store import BenchStore  # noqa: PLC0415
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args = self._task.args
        store = BenchStore(Path(args["folder"]))
        try:
            if args["state"] == "begin":
                tiers = store.begin(str(args["policy_file"]), str(args["tier"]), read_only=bool(self._task.check_mode))
                return {**result, "changed": False, "tiers": tiers}
            fleet = BenchedFleet(
                cluster=str(args["cluster"]),
                hosts=tuple(args["hosts"]),
                gpu_nodes=int(args["fleet"]),
                policy_file=str(args["policy_file"]),
                tier=str(args["tier"]),
                limit_percent=float(args["limit_percent"]),
                now=time.time(),
            )
            if args["state"] == "next":
                hostvars = (task_vars or {})["hostvars"]
                present, at_once = tuple(args["present"]), int(args["at_once"])
                what = next_round(store, fleet, present=present, facts=lambda: _facts(hostvars, fleet.hosts), at_once=at_once)
                return {**result, "changed": False, "more": bool(what), "what": what}
            if args["state"] == "rerun":
                return {**result, "changed": False, "round": finalize.request_reruns(store, fleet)}
            shown = finalize.finish(store, fleet)
        except PrimusError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        return {**result, "changed": False, "msg": json.dumps({"verdicts": [verdict.to_json() for verdict in shown]})}


def _facts(hostvars: Mapping[str, Mapping[str, Any]], hosts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return address, switch and rack of each host from the inventory; the address is the one that training jobs use."""
    known = {host: hostvars[host] for host in hosts}
    return {
        host: {
            "address": str(values.get("ip") or values.get("ansible_host") or host),
            "switch": str(values.get("slurm_switch") or ""),
            "rack": str(values.get("rack") or ""),
        }
        for host, values in known.items()
    }
