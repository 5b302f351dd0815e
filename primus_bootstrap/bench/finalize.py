"""Finish a bench: evaluate the results, decide about quarantine, and save decisions, history and reports."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.fabric.session import add_fabric, fabric_verdicts
from primus_bootstrap.bench.judging.evaluation import BenchedFleet, CollectedResults, collect, evaluate_hosts, relevant_verdicts
from primus_bootstrap.bench.judging.history_records import new_records
from primus_bootstrap.bench.judging.verdicts import worst_of
from primus_bootstrap.bench.quarantine.decisions import OWNER, PENDING, HostState, QuarantineRecord
from primus_bootstrap.bench.quarantine.gate import decide
from primus_bootstrap.bench.report.build import build_report, report_files
from primus_bootstrap.bench.results.step_commands import host_tier, read_policy
from primus_bootstrap.core.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
    from primus_bootstrap.bench.quarantine.decisions import Decision, GateResult
    from primus_bootstrap.bench.quarantine.policy import Policy
    from primus_bootstrap.bench.results.host_answers import HostAnswers
    from primus_bootstrap.bench.results.store import BenchStore

QUARANTINE_SCHEMA = "primus.quarantine/1"
PASSED_SCHEMA = "primus.bench-pass/1"
# The check with the overall result of a host under the policy.
OVERALL = "bench"


def request_reruns(store: BenchStore, fleet: BenchedFleet) -> int:
    """Evaluate the results so far, and save which benchmarks to run again. Hosts with jobs are left out.

    Returns the number of the round of reruns; 0 if there is none.
    """
    collected = collect(store, fleet)
    reruns: dict[str, dict[str, int]] = {}
    for rerun in evaluate_hosts(collected, store.history()).reruns:
        if rerun.host not in collected.busy:
            reruns.setdefault(rerun.host, {})[rerun.benchmark] = rerun.repeats
    return store.save_reruns(reruns)


def finish(store: BenchStore, fleet: BenchedFleet) -> tuple[Verdict, ...]:
    """Evaluate all rounds, decide, and save decisions, history and reports. Return the verdicts to show.

    The decisions are saved last: if the run is killed before, no host has passed, and the next run benches again.
    """
    collected = collect(store, fleet)
    if not collected.measured and not collected.lost:
        return ()
    policy = read_policy(fleet.policy_file).with_limit(fleet.limit_percent)
    history = store.history()
    evaluation = add_fabric(evaluate_hosts(collected, history), fabric_verdicts(store, fleet))
    states = _host_states(collected, store.quarantined())
    gate, passed = _decide(fleet, collected, evaluation, policy, states, store)
    shown = verdicts_to_show(collected, evaluation, gate, policy)
    report = build_report(
        cluster=fleet.cluster,
        tier=fleet.tier,
        now=fleet.now,
        hosts={verdict.host: verdict.verdict for verdict in shown if verdict.check == OVERALL},
        evaluation=evaluation,
        gate=gate,
        history=history,
    )
    store.save_report(report_files(report), now=fleet.now)
    fingerprints = {host: facts.fingerprint for host in collected.measured if (facts := collected.answers[host].facts)}
    store.append_history(new_records(evaluation, fingerprints, time=fleet.now))
    if gate.breaker and gate.tripped:
        store.save_breaker(gate.breaker)
    _save_decisions(store, fleet, collected, gate, states, passed)
    return shown


def verdicts_to_show(collected: CollectedResults, evaluation: BenchEvaluation, gate: GateResult, policy: Policy) -> tuple[Verdict, ...]:
    """Return one overall verdict for each host, and the verdicts that quarantine it or keep it out. The reports contain the others."""
    decisions = {decision.host: decision for decision in gate.decisions}
    relevant = relevant_verdicts(evaluation, policy)
    overall = []
    for host in (*collected.measured, *collected.lost):
        outcomes = [verdict.verdict for verdict in relevant if verdict.host == host]
        released = not outcomes and decisions[host].action == "release"
        overall.append(
            Verdict(
                check=OVERALL,
                host=host,
                verdict=worst_of(outcomes) if outcomes else "pass",
                expected="a pass",
                reason="" if released else decisions[host].reason,
                fix="read the report: primus-bootstrap bench hosts.yaml --last" if outcomes else "",
            )
        )
    return (*overall, *relevant)


def _decide(  # noqa: PLR0913, PLR0917 - all inputs of a decision
    fleet: BenchedFleet,
    collected: CollectedResults,
    evaluation: BenchEvaluation,
    policy: Policy,
    states: Sequence[HostState],
    store: BenchStore,
) -> tuple[GateResult, tuple[str, ...]]:
    """Return the gate's result, and the measured hosts that passed: those that it would release if they were new."""
    with_storage = any(step.name == "storage" for host in collected.measured for step in collected.answers[host].steps)
    inputs: dict[str, Any] = {
        "policy": policy,
        "tier": host_tier(policy.tiers[fleet.tier], with_storage=with_storage),
        "gpu_nodes": fleet.gpu_nodes,
        "now": fleet.now,
        "codes": evaluation.codes,
    }
    gate = decide(states, evaluation.verdicts, breaker=store.breaker(), **inputs)
    new = QuarantineRecord(OWNER, PENDING, -math.inf, own_clock=True)
    as_new = decide([HostState(host, (new,)) for host in collected.measured], evaluation.verdicts, **inputs)
    return gate, tuple(decision.host for decision in as_new.decisions if decision.action == "release")


def _host_states(collected: CollectedResults, quarantined: Sequence[str]) -> list[HostState]:
    """Return the quarantine records of all hosts; for hosts outside this bench, those that earlier benches quarantined."""
    states = []
    for host, answers in collected.answers.items():
        record = answers.facts.record if answers.facts else None
        states.append(HostState(host, (record,) if record else (), known=answers.facts is not None))
    others = sorted(set(quarantined) - collected.answers.keys())
    return states + [HostState(host, (QuarantineRecord(OWNER, "by an earlier bench"),)) for host in others]


def _save_decisions(  # noqa: PLR0913, PLR0917 - all parts of the decisions
    store: BenchStore,
    fleet: BenchedFleet,
    collected: CollectedResults,
    gate: GateResult,
    states: Sequence[HostState],
    passed: Sequence[str],
) -> None:
    released = [decision.host for decision in gate.decisions if decision.action == "release"]
    new = [decision for decision in gate.decisions if decision.action == "quarantine"]
    present = {state.host for state in states if any(record.ours and not record.pending for record in state.records)}
    unmeasured = set(store.quarantined()) - set(collected.measured)
    store.save_decisions(
        records=[_quarantine_record(decision, collected.answers[decision.host]) for decision in new],
        released=released,
        passes={host: _pass_note(fleet, host, collected.answers[host]) for host in passed},
        quarantined=sorted((unmeasured | present | {decision.host for decision in new}) - set(released)),
    )


def _quarantine_record(decision: Decision, answers: HostAnswers) -> dict[str, Any]:
    """Return the record of a quarantine. Its time comes from the host's own clock, as the times of its checks do."""
    return {
        "schema": QUARANTINE_SCHEMA,
        "host": decision.host,
        "owner": OWNER,
        "reason": decision.reason,
        "time": answers.now,
        "clock": decision.host,
        "verdicts": [verdict.to_json() for verdict in decision.verdicts],
    }


def _pass_note(fleet: BenchedFleet, host: str, answers: HostAnswers) -> dict[str, Any]:
    return {
        "schema": PASSED_SCHEMA,
        "host": host,
        "tier": fleet.tier,
        "time": answers.now,
        "fingerprint": asdict(answers.facts.fingerprint) if answers.facts else {},
    }
