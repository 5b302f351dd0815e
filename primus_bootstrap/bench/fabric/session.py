"""Run the rounds over several hosts on the controller: who takes part, which groups run next, and the final verdicts."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.fabric.fabric_verdicts import FabricVerdicts
from primus_bootstrap.bench.fabric.group_runs import busy_reason, evaluate_group_run
from primus_bootstrap.bench.fabric.schedule import FabricSchedule, absent_verdict, evaluate_fabric, find_locations, next_runs
from primus_bootstrap.bench.judging.evaluation import BenchedFleet, CollectedResults, collect, evaluate_hosts, relevant_verdicts
from primus_bootstrap.bench.judging.floors import load_floors
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.verdicts import worst_of
from primus_bootstrap.bench.results.group_records import FabricState, GroupAnswer
from primus_bootstrap.bench.results.step_commands import NO_TIER, group_command, read_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
    from primus_bootstrap.bench.quarantine.policy import Tier
    from primus_bootstrap.bench.results.step_commands import BenchRequest
    from primus_bootstrap.bench.results.store import BenchStore

_MIN_HOSTS = 2
# Ansible includes each round from the one before, and its stack ends at about 900.
MAX_ROUNDS = 800
LOST = "it was lost during the runs over several hosts"
# Below the range of ports that Linux uses for outgoing connections. Each group gets another port, so that a stale run causes no conflict.
_FIRST_PORT, _PORTS = 10000, 20000


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One host's part of the current round: the round's number, the hosts of its group, and the step to run."""

    number: int
    hosts: tuple[str, ...]
    step: dict[str, Any]


def next_round(
    store: BenchStore, fleet: BenchedFleet, *, present: Sequence[str], facts: Callable[[], Mapping[str, Mapping[str, str]]], at_once: int
) -> str:
    """Store the results of the finished round and the groups of the next one. Return the next round in words; empty at the end.

    Args:
        present: The hosts that are still reachable.
        facts: Returns `address`, `switch` and `rack` by host, as the inventory states them.
        at_once: Number of hosts that may run at the same time; 0 for any number.
    """
    tier = None if fleet.tier == NO_TIER else read_policy(fleet.policy_file).tiers[fleet.tier]
    if tier is None or all(step.over == "host" for step in tier.steps):
        return ""
    state = store.fabric_state()
    if state is None:
        state = _begin(store, fleet, present, facts)
        if state is None:
            return ""
    elif state.done:
        return ""
    else:
        state = _store_finished_round(store, state, present)
    late = fleet.now - state.begun > tier.budget_s
    if (late or state.number >= MAX_ROUNDS) and not state.given_up:
        reason = f"the tier's time budget ({tier.budget_s:g} s) is used up" if late else f"{MAX_ROUNDS} rounds were not enough"
        state = replace(state, given_up=reason)
    runs = next_runs(_schedule(store, state, tier, at_once=at_once), load_floors(), JudgingSettings())
    state = replace(state, number=state.number + 1, runs=runs, done=not runs)
    store.save_fabric_state(state)
    if not runs:
        return ""
    size = len(runs[0].hosts)
    groups = f"{size} hosts" if size > 2 else f"{len(runs)} {'pairs' if len(runs) > 1 else 'pair'}"
    return f"{tier.steps[runs[0].step].run} on {groups}, round {state.number}"


def _begin(
    store: BenchStore, fleet: BenchedFleet, present: Sequence[str], facts: Callable[[], Mapping[str, Mapping[str, str]]]
) -> FabricState | None:
    """Return the state before the first round; None if no host was measured."""
    collected = collect(store, fleet)
    if not collected.measured:
        return None
    hosts, absent = _participants(store, fleet, collected, present)
    return FabricState(hosts, absent, facts(), _models(collected), begun=fleet.now)


def _participants(
    store: BenchStore, fleet: BenchedFleet, collected: CollectedResults, present: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, str]]]:
    """Return the hosts that take part, and verdict and reason of the measured hosts that do not."""
    relevant = relevant_verdicts(evaluate_hosts(collected, store.history()), read_policy(fleet.policy_file))
    absent: dict[str, tuple[str, str]] = {}
    for host in collected.measured:
        checks = sorted({verdict.check for verdict in relevant if verdict.host == host})
        if host in collected.busy:
            absent[host] = "unknown", "jobs run on it"
        elif host not in present:
            absent[host] = "unknown", "it was lost before the runs over several hosts"
        elif checks:
            absent[host] = "skipped", f"it did not pass its own steps: {', '.join(checks)}"
    hosts = tuple(host for host in collected.measured if host not in absent)
    if len(hosts) < _MIN_HOSTS:
        reason = f"only {len(hosts)} host is idle and passed its own steps; at least {_MIN_HOSTS} are needed"
        absent.update(dict.fromkeys(hosts, ("skipped", reason)))
        hosts = ()
    return hosts, absent


def _models(collected: CollectedResults) -> dict[str, str]:
    """Return the device models of each host, from its results."""
    models: dict[str, set[str]] = {}
    for result in collected.results:
        models.setdefault(result.host, set()).add(result.model)
    return {host: ", ".join(sorted(names)) for host, names in models.items()}


def _store_finished_round(store: BenchStore, state: FabricState, present: Sequence[str]) -> FabricState:
    """Append the results of the current round to the store; return the state without these runs and without hosts that dropped out."""
    answers = {host: answer for host in state.hosts if (answer := store.group_answer(host)).number == state.number}
    store.append_group_runs([evaluate_group_run(run, answers) for run in state.runs])
    lost = {host: LOST for host in state.hosts if host not in present}
    busy = {host: busy_reason(answer.step) for host, answer in answers.items() if answer.step and answer.step.jobs}
    not_started = {host: answer.absent for host, answer in answers.items() if answer.absent}
    state = replace(state, left={**lost, **busy, **not_started, **state.left}, runs=())
    store.save_fabric_state(state)
    return state


def _schedule(store: BenchStore, state: FabricState, tier: Tier, *, at_once: int) -> FabricSchedule:
    return FabricSchedule(
        steps={number: step for number, step in enumerate(tier.steps) if step.over != "host"},
        hosts=state.hosts,
        locations=find_locations(state.facts),
        models=state.models,
        left=state.left,
        runs=store.group_runs(),
        at_once=at_once,
        given_up=state.given_up,
    )


def group_part(store: BenchStore, host: str, request: BenchRequest, tier: Tier, *, port: int) -> GroupPart | None:
    """Return a host's part of the current round; None if it pauses. With `port` 0 each group gets another port."""
    state = store.fabric_state()
    for index, run in enumerate(state.runs if state else ()):
        if state and host in run.hosts:
            gpus = [facts.gpus if (facts := store.answers(member).facts) else 0 for member in run.hosts]
            launch_options = {
                "nnodes": len(run.hosts),
                "node-rank": run.hosts.index(host),
                "nproc": max(1, min(gpus)),
                "master-addr": state.facts[run.hosts[0]]["address"],
                "master-port": port or _FIRST_PORT + zlib.crc32(f"{state.begun} {state.number} {index}".encode()) % _PORTS,
            }
            step = group_command(tier.steps[run.step], request, "cuda" if min(gpus) else "auto", launch_options)
            return GroupPart(state.number, run.hosts, step)
    return None


def has_started(store: BenchStore, hosts: Sequence[str]) -> bool:
    """Return whether all hosts of a group started in the current round. If one did not, the others would wait until their time limit."""
    state = store.fabric_state()
    answers: list[GroupAnswer] = [store.group_answer(host) for host in hosts]
    return state is not None and all(answer.number == state.number and answer.started for answer in answers)


def fabric_verdicts(store: BenchStore, fleet: BenchedFleet) -> FabricVerdicts:
    """Return the verdicts of the runs over several hosts, and one for each measured host that took no part."""
    state = store.fabric_state()
    if state is None:
        return FabricVerdicts((), {})
    tier = read_policy(fleet.policy_file).tiers[fleet.tier]
    schedule = _schedule(store, state, tier, at_once=0)
    if not state.done:
        schedule = replace(schedule, given_up=schedule.given_up or "the runs over several hosts were interrupted")
    result = evaluate_fabric(schedule, load_floors(), JudgingSettings()) if schedule.hosts else FabricVerdicts((), {})
    checks = [step.checks for step in schedule.steps.values()]
    absent = tuple(absent_verdict(check, host, *reason) for host, reason in state.absent.items() for check in checks)
    return FabricVerdicts((*result.verdicts, *absent), result.codes)


def add_fabric(evaluation: BenchEvaluation, fabric: FabricVerdicts) -> BenchEvaluation:
    """Add the verdicts of runs over several hosts. Verdicts on paths and on the whole fabric count for no host."""
    hosts = dict(evaluation.hosts)
    for verdict in fabric.verdicts:
        if verdict.host and "," not in verdict.host and verdict.verdict != "skipped":
            hosts[verdict.host] = worst_of((hosts.get(verdict.host, verdict.verdict), verdict.verdict))
    return replace(
        evaluation,
        verdicts=(*evaluation.verdicts, *fabric.verdicts),
        hosts=hosts,
        codes={**evaluation.codes, **fabric.codes},
    )
