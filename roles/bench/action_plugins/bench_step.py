"""Ansible action `bench_step`: one step of a bench that runs on the controller or starts from it.

It uses `primus_bootstrap.bench` on the controller, so it cannot be a module. It measures with the module bench_node.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.bench.judging.evaluation import BenchedFleet
    from primus_bootstrap.bench.results.step_commands import BenchRequest
    from primus_bootstrap.bench.results.store import BenchStore


class ActionModule(ActionBase):
    """The argument `state` is the step.

    For all hosts: `begin` clears the results of the previous bench and returns the tiers. `rerun` returns the round of repeated
    measurements, 0 if there is none. `next` reads a round of runs over several hosts and returns the next one; `more` is false after the
    last. `decide` writes decisions, history and reports, and returns the reported verdicts.

    For one host: `measure` measures it and stores the results. `start` starts its part in a run over several hosts, `finish` waits for its
    end. A host that needs no bench, or has no part in this round, is not contacted.
    """

    _VALID_ARGS = frozenset(
        {"state", "folder", "policy_file", "tier"}
        | {"hosts", "fleet", "limit_percent", "cluster", "present", "at_once"}
        | {"program", "image", "force", "facts", "expected", "storage_folder", "trial", "round", "port"}
    )

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the step."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.bench.results.store import BenchStore  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        steps = {"begin": self._begin, "measure": self._measure, "start": self._take_part, "finish": self._take_part}
        step = steps.get(self._task.args["state"], self._evaluate)
        try:
            return {**result, "changed": False, **step(BenchStore(Path(self._task.args["folder"])), task_vars or {})}
        except PrimusError as problem:
            raise AnsibleActionFail(str(problem)) from problem

    def _begin(self, store: BenchStore, _: Mapping[str, Any]) -> dict[str, Any]:
        args = self._task.args
        return {"tiers": store.begin(str(args["policy_file"]), str(args["tier"]), read_only=bool(self._task.check_mode))}

    def _evaluate(self, store: BenchStore, task_vars: Mapping[str, Any]) -> dict[str, Any]:
        from primus_bootstrap.bench import finalize  # noqa: PLC0415 - `run` has checked that the package exists
        from primus_bootstrap.bench.fabric.session import next_round  # noqa: PLC0415

        args, fleet = self._task.args, self._fleet()
        if args["state"] == "rerun":
            return {"round": finalize.request_reruns(store, fleet)}
        if args["state"] == "decide":
            return {"msg": json.dumps({"verdicts": [verdict.to_json() for verdict in finalize.finish(store, fleet)]})}
        present, at_once = tuple(args["present"]), int(args["at_once"])
        what = next_round(store, fleet, present=present, facts=lambda: _facts(task_vars["hostvars"], fleet.hosts), at_once=at_once)
        return {"more": bool(what), "what": what}

    def _fleet(self) -> BenchedFleet:
        from primus_bootstrap.bench.judging.evaluation import BenchedFleet  # noqa: PLC0415

        args = self._task.args
        return BenchedFleet(
            cluster=str(args["cluster"]),
            hosts=tuple(args["hosts"]),
            gpu_nodes=int(args["fleet"]),
            policy_file=str(args["policy_file"]),
            tier=str(args["tier"]),
            limit_percent=float(args["limit_percent"]),
            now=time.time(),
        )

    def _request(self) -> BenchRequest:
        from primus_bootstrap.bench.results.step_commands import BenchRequest  # noqa: PLC0415

        args = self._task.args
        return BenchRequest(
            tier=str(args["tier"]),
            policy_file=str(args["policy_file"]),
            program=str(args["program"]),
            image=str(args["image"]),
            storage_folder=str(args.get("storage_folder", "")),
            force=boolean(args.get("force", True)),
            trial=dict(args.get("trial", {})),
        )

    def _measure(self, store: BenchStore, task_vars: dict[str, Any]) -> dict[str, Any]:
        from primus_bootstrap.bench.results.step_commands import remaining_s, steps_for_host  # noqa: PLC0415

        args, host, request = self._task.args, str(task_vars["inventory_hostname"]), self._request()
        if int(args["round"]) == 0:
            store.save_facts(host, dict(args["facts"]))
        answers = store.answers(host)
        steps = steps_for_host(answers, request, round_=int(args["round"]), reruns=store.reruns(host))
        if steps:
            store.mark_requested(host)
            left_s = remaining_s(answers, request)
            arguments = {"state": "measure", "steps": steps, "expected": args["expected"], "left_s": left_s}
            measured: dict[str, Any] = self._execute_module(module_name="bench_node", module_args=arguments, task_vars=task_vars)
            if "steps" not in measured:
                return measured
            store.add_round(host, measured["steps"], now=float(measured["now"]))
        return {"steps": len(steps)}

    def _take_part(self, store: BenchStore, task_vars: dict[str, Any]) -> dict[str, Any]:
        from primus_bootstrap.bench.fabric.session import group_part, has_started  # noqa: PLC0415
        from primus_bootstrap.bench.results.step_commands import read_policy  # noqa: PLC0415

        args, host, request = self._task.args, str(task_vars["inventory_hostname"]), self._request()
        part = group_part(store, host, request, read_policy(request.policy_file).tiers[request.tier], port=int(args["port"]))
        if part is None or (args["state"] == "finish" and not has_started(store, [host])):
            return {"runs": False}
        arguments = {"state": args["state"], "number": part.number}
        arguments |= {"steps": [part.step]} if args["state"] == "start" else {"stop": not has_started(store, part.hosts)}
        answer = self._execute_module(module_name="bench_node", module_args=arguments, task_vars=task_vars)
        if answer.get("failed"):
            answer = {"absent" if args["state"] == "start" else "cut": str(answer.get("msg", "its part failed"))}
        store.save_group_answer(host, {name: answer[name] for name in ("started", "absent", "step", "cut") if name in answer})
        return {"runs": True}


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
