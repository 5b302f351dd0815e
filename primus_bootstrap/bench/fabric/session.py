"""The rounds of runs over several hosts, on the controller: who takes part, what is next, and what they say in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.bench.fabric.fabric_store import MOST_ROUNDS, FabricStore
from primus_bootstrap.bench.fabric.fabric_verdicts import FabricVerdicts
from primus_bootstrap.bench.fabric.schedule import absent, conclude, next_runs
from primus_bootstrap.bench.judging.evaluation import BenchedFleet, CollectedResults, judge_case, read_desk, telling_verdicts
from primus_bootstrap.bench.judging.floors import load_floors
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.verdicts import overall
from primus_bootstrap.bench.results.store import NOBODY, read_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
    from primus_bootstrap.bench.results.store import BenchStore
    from primus_bootstrap.core.verdicts import Outcome

_LEAST_HOSTS = 2


def next_round(
    desk: BenchStore, case: BenchedFleet, *, present: Sequence[str], facts: Callable[[], Mapping[str, Mapping[str, str]]], at_once: int
) -> str:
    """Take in the round that has run, and leave on the desk what runs over several hosts next; return it in words, empty at the end.

    Args:
        desk: The desk.
        case: What is judged.
        present: The hosts that can be reached still.
        facts: Returns by host `address`, `switch` and `rack`, as the inventory states them.
        at_once: How many hosts may run at the same time; 0 for any number.
    """
    tier = None if case.tier == NOBODY else read_policy(case.policy_file).tiers[case.tier]
    if tier is None or all(step.over == "host" for step in tier.steps):
        return ""
    fabric = FabricStore(desk)
    if not fabric.state():
        found = read_desk(desk, case)
        if not found.measured:
            return ""
        hosts, others = _who_takes_part(desk, case, found, present)
        fabric.begin(hosts, others, facts(), _models(found), now=case.now)
    elif fabric.state()["done"]:
        return ""
    else:
        fabric.take_in(present)
    state = fabric.state()
    late = case.now - state["begun"] > tier.budget_s
    if (late or state["number"] >= MOST_ROUNDS) and not state["given_up"]:
        fabric.give_up(f"the tier's time ({tier.budget_s:g} s) was over" if late else f"{MOST_ROUNDS} rounds were not enough")
    course = fabric.course(tier, at_once=at_once)
    runs = next_runs(course, load_floors(), JudgingSettings())
    fabric.set_round(runs)
    if not runs:
        return ""
    many = len(runs[0].hosts)
    on = f"{many} hosts" if many > 2 else f"{len(runs)} {'pairs' if len(runs) > 1 else 'pair'}"
    return f"{tier.steps[runs[0].step].run} on {on}, round {state['number'] + 1}"


def _who_takes_part(
    desk: BenchStore, case: BenchedFleet, found: CollectedResults, present: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[Outcome, str]]]:
    """Return the hosts that passed their own steps, run no jobs and can be reached; and of the other measured ones, verdict and why."""
    policy = read_policy(case.policy_file)
    telling = telling_verdicts(judge_case(desk, found), policy)
    others: dict[str, tuple[Outcome, str]] = {}
    for host in found.measured:
        checks = sorted({verdict.check for verdict in telling if verdict.host == host})
        if host in found.busy:
            others[host] = "unknown", "jobs run on it"
        elif host not in present:
            others[host] = "unknown", "it was lost before the runs over several hosts"
        elif checks:
            others[host] = "skipped", f"it did not pass its own steps: {', '.join(checks)}"
    hosts = tuple(host for host in found.measured if host not in others)
    if len(hosts) < _LEAST_HOSTS:
        others.update(dict.fromkeys(hosts, ("skipped", f"{len(hosts)} host that is idle and passed its own steps is no fabric")))
        hosts = ()
    return hosts, others


def _models(found: CollectedResults) -> dict[str, str]:
    """Return what devices each host has, as its results say."""
    models: dict[str, set[str]] = {}
    for result in found.results:
        models.setdefault(result.host, set()).add(result.model)
    return {host: ", ".join(sorted(names)) for host, names in models.items()}


def fabric_verdicts(desk: BenchStore, case: BenchedFleet) -> FabricVerdicts:
    """Return what the runs over several hosts say, and of each host that took no part why."""
    fabric = FabricStore(desk)
    state = fabric.state()
    if not state:
        return FabricVerdicts((), {})
    tier = read_policy(case.policy_file).tiers[case.tier]
    course = fabric.course(tier, at_once=0)
    if not state["done"]:
        course = replace(course, given_up=course.given_up or "the runs over several hosts were cut short")
    told = conclude(course, load_floors(), JudgingSettings()) if course.hosts else FabricVerdicts((), {})
    checks = [step.checks for step in course.steps.values()]
    without = tuple(absent(check, host, *why) for host, why in state["absent"].items() for check in checks)
    return FabricVerdicts((*told.verdicts, *without), told.codes)


def with_fabric(judgement: BenchEvaluation, fabric: FabricVerdicts) -> BenchEvaluation:
    """Add what runs over several hosts say; a path of two, and what all of them share, is nobody's."""
    hosts = dict(judgement.hosts)
    for verdict in fabric.verdicts:
        if verdict.host and "," not in verdict.host and verdict.verdict != "skipped":
            hosts[verdict.host] = overall((hosts.get(verdict.host, verdict.verdict), verdict.verdict))
    return replace(
        judgement,
        verdicts=(*judgement.verdicts, *fabric.verdicts),
        hosts=hosts,
        codes={**judgement.codes, **fabric.codes},
    )
