"""The steps of the role `bench` that run on the controller or start from it: the Ansible action `bench_step`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench import finalize
from primus_bootstrap.bench.fabric.session import group_part, has_started, next_round
from primus_bootstrap.bench.judging.evaluation import BenchedFleet
from primus_bootstrap.bench.results.step_commands import BenchRequest, read_policy, remaining_s, steps_for_host
from primus_bootstrap.bench.results.store import BenchStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class RoleStep:
    """One task of the role.

    Attributes:
        args: Its arguments; `state` is the step.
        variables: The variables of its host.
        on_host: Runs the module bench_node on the host and returns its result.
        check: Whether it runs in check mode.
    """

    args: Mapping[str, Any]
    variables: Mapping[str, Any]
    on_host: Callable[[dict[str, Any]], dict[str, Any]]
    check: bool = False

    def run(self) -> dict[str, Any]:
        """Run the step and return the task's result.

        Raises:
            PrimusError: The policy is invalid, or the stored results cannot be read or written.
        """
        steps = {"begin": self._begin, "measure": self._measure, "start": self._take_part, "finish": self._take_part}
        return steps.get(str(self.args["state"]), self._evaluate)(BenchStore(Path(self.args["folder"])))

    def _begin(self, store: BenchStore) -> dict[str, Any]:
        return {"tiers": store.begin(str(self.args["policy_file"]), str(self.args["tier"]), read_only=self.check)}

    def _evaluate(self, store: BenchStore) -> dict[str, Any]:
        fleet = self._fleet()
        if self.args["state"] == "rerun":
            return {"round": finalize.request_reruns(store, fleet)}
        if self.args["state"] == "decide":
            return {"msg": json.dumps({"verdicts": [verdict.to_json() for verdict in finalize.finish(store, fleet)]})}
        present, at_once = tuple(self.args["present"]), int(self.args["at_once"])
        what = next_round(store, fleet, present=present, facts=lambda: self._facts(fleet.hosts), at_once=at_once)
        return {"more": bool(what), "what": what}

    def _fleet(self) -> BenchedFleet:
        return BenchedFleet(
            cluster=str(self.args["cluster"]),
            hosts=tuple(self.args["hosts"]),
            gpu_nodes=int(self.args["fleet"]),
            policy_file=str(self.args["policy_file"]),
            tier=str(self.args["tier"]),
            limit_percent=float(self.args["limit_percent"]),
            now=time.time(),
        )

    def _facts(self, hosts: tuple[str, ...]) -> dict[str, dict[str, str]]:
        """Return address, switch and rack of each host from the inventory; the address is the one that training jobs use."""
        known = {host: self.variables["hostvars"][host] for host in hosts}
        return {
            host: {
                "address": str(values.get("ip") or values.get("ansible_host") or host),
                "switch": str(values.get("slurm_switch") or ""),
                "rack": str(values.get("rack") or ""),
            }
            for host, values in known.items()
        }

    def _request(self) -> BenchRequest:
        return BenchRequest(
            tier=str(self.args["tier"]),
            policy_file=str(self.args["policy_file"]),
            program=str(self.args["program"]),
            image=str(self.args["image"]),
            storage_folder=str(self.args.get("storage_folder", "")),
            force=bool(self.args.get("force", True)),
            trial=dict(self.args.get("trial", {})),
        )

    def _measure(self, store: BenchStore) -> dict[str, Any]:
        host, request, number = str(self.variables["inventory_hostname"]), self._request(), int(self.args["round"])
        if number == 0:
            store.save_facts(host, dict(self.args["facts"]))
        answers = store.answers(host)
        steps = steps_for_host(answers, request, round_=number, reruns=store.reruns(host))
        if steps:
            store.mark_requested(host)
            left_s = remaining_s(answers, request)
            measured = self.on_host({"state": "measure", "steps": steps, "expected": self.args["expected"], "left_s": left_s})
            if "steps" not in measured:
                return measured
            store.add_round(host, measured["steps"], now=float(measured["now"]))
        return {"steps": len(steps)}

    def _take_part(self, store: BenchStore) -> dict[str, Any]:
        host, request, state = str(self.variables["inventory_hostname"]), self._request(), self.args["state"]
        part = group_part(store, host, request, read_policy(request.policy_file).tiers[request.tier], port=int(self.args["port"]))
        if part is None or (state == "finish" and not has_started(store, [host])):
            return {"runs": False}
        arguments = {"state": state, "number": part.number}
        arguments |= {"steps": [part.step]} if state == "start" else {"stop": not has_started(store, part.hosts)}
        answer = self.on_host(arguments)
        if answer.get("failed"):
            answer = {"absent" if state == "start" else "cut": str(answer.get("msg", "its part failed"))}
        store.save_group_answer(host, {name: answer[name] for name in ("started", "absent", "step", "cut") if name in answer})
        return {"runs": True}
