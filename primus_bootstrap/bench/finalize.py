"""From what the hosts said to who serves: reads the desk, judges, asks the gate, and leaves decisions, history and reports."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.fabric.fabric_store import FabricStore
from primus_bootstrap.bench.fabric.session import fabric_verdicts, with_fabric
from primus_bootstrap.bench.judging.evaluation import BenchedFleet, CollectedResults, judge_case, read_desk, read_past, telling_verdicts
from primus_bootstrap.bench.judging.history_records import new_records
from primus_bootstrap.bench.quarantine.gate import OWNER, PENDING, HostState, QuarantineRecord, decide
from primus_bootstrap.bench.results.history import Fingerprint, append_history
from primus_bootstrap.bench.results.run_store import make_run, write_run
from primus_bootstrap.bench.results.store import read_policy, tier_of
from primus_bootstrap.core.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
    from primus_bootstrap.bench.quarantine.gate import Decision, Gate
    from primus_bootstrap.bench.quarantine.policy import Policy, Tier
    from primus_bootstrap.bench.results.store import BenchStore

QUARANTINE_SCHEMA = "primus.quarantine/1"
PASSED_SCHEMA = "primus.bench-pass/1"
# The check that says what the policy makes of all of a host's others.
OVERALL = "bench"


def ask_again(desk: BenchStore, case: BenchedFleet) -> int:
    """Judge what was measured so far; leave on the desk what more repeats can decide.

    A host on which jobs were seen is left in peace. Returns the number of the round of measuring again, 0 where nothing is wanted.
    """
    found = read_desk(desk, case)
    judgement = judge_case(desk, found)
    again: dict[str, dict[str, int]] = {}
    for wish in judgement.again:
        if wish.host not in found.busy:
            again.setdefault(wish.host, {})[wish.benchmark] = wish.repeats
    return desk.ask_again(again)


def finish(desk: BenchStore, case: BenchedFleet) -> tuple[Verdict, ...]:
    """Judge all rounds, decide, and leave decisions, history and reports; return what people have to see.

    The decisions come last: where a run is killed before them, nobody has passed, and the next one benches again.
    """
    found = read_desk(desk, case)
    if not found.measured and not found.lost:
        return ()
    policy = read_policy(case.policy_file).with_limit(case.limit_percent)
    tier = tier_of(policy, case.tier, asked_storage="storage" if _ran(desk, found.measured, "storage") else "")
    judgement = with_fabric(judge_case(desk, found), fabric_verdicts(desk, case))
    gate, passes = _gate(desk, case, found, judgement, policy, tier)
    telling = shown(found, judgement, gate, policy)
    run = make_run(
        cluster=case.cluster,
        tier=case.tier,
        now=case.now,
        hosts={each.host: each.verdict for each in telling if each.check == OVERALL},
        results=found.results,
        judgement=judgement,
        gate=gate,
        history=read_past(desk),
    )
    FabricStore(desk).keep_with(write_run(desk.folder, run, json.dumps(run.to_json()) + "\n", now=case.now))
    prints = {host: Fingerprint(**desk.said(host)["seen"]["fingerprint"]) for host in found.measured}
    append_history(desk.folder / "history.jsonl", new_records(judgement, prints, time=case.now))
    if gate.breaker and gate.tripped:
        desk.write("breaker.json", gate.breaker.to_json())
    released = [each.host for each in gate.decisions if each.action == "release"]
    records = [_record(desk, each) for each in gate.decisions if each.action == "quarantine"]
    kept = {host: _pass(desk, case, host) for host in passes}
    gone = {record["host"] for record in records}
    standing = {state.host for state in _states(desk, case) if any(each.ours and not each.pending for each in state.standing)}
    before = set(desk.previous().get("ours", [])) - set(found.measured)
    desk.decide(records=records, released=released, passes=kept, ours=sorted((before | standing | gone) - set(released)))
    return telling


def shown(found: CollectedResults, judgement: BenchEvaluation, gate: Gate, policy: Policy) -> tuple[Verdict, ...]:
    """Return one verdict a benched host, and those that keep or take a host out; all the rest is in the reports."""
    decided = {each.host: each for each in gate.decisions}
    telling = telling_verdicts(judgement, policy)
    bad = {host: [each.verdict for each in telling if each.host == host] for host in (*found.measured, *found.lost)}
    overall = [
        Verdict(
            check=OVERALL,
            host=host,
            verdict="fail" if "fail" in outcomes else "unknown" if outcomes else "pass",
            expected="a pass",
            reason="" if not outcomes and decided[host].action == "release" else decided[host].reason,
            fix="see the report: primus-bootstrap bench --last" if outcomes else "",
        )
        for host, outcomes in bad.items()
    ]
    return (*overall, *telling)


def _gate(  # noqa: PLR0913, PLR0917 - the whole of what it rests on
    desk: BenchStore, case: BenchedFleet, found: CollectedResults, judgement: BenchEvaluation, policy: Policy, tier: Tier
) -> tuple[Gate, tuple[str, ...]]:
    """Return the decisions, and the hosts that would join if they were new: those have passed."""
    verdicts = list(judgement.verdicts)
    common: dict[str, Any] = {"policy": policy, "tier": tier, "gpu_nodes": case.fleet, "now": case.now, "codes": judgement.codes}
    gate = decide(_states(desk, case), verdicts, breaker=desk.breaker(), **common)
    newcomers = [HostState(host, (QuarantineRecord(OWNER, PENDING, -math.inf, own_clock=True),)) for host in found.measured]
    passes = tuple(each.host for each in decide(newcomers, verdicts, **common).decisions if each.action == "release")
    return gate, passes


def _states(desk: BenchStore, case: BenchedFleet) -> list[HostState]:
    """Return what keeps each host out of service: of hosts outside this run, what was decided last."""
    states = []
    for host in case.hosts:
        seen = desk.said(host)["seen"]
        record = seen.get("record") or {}
        standing = (
            (
                QuarantineRecord(
                    str(record["owner"]), str(record["reason"]), float(record["time"]), own_clock=record.get("clock", host) == host
                ),
            )
            if record
            else ()
        )
        states.append(HostState(host, standing, known=bool(seen)))
    others = set(desk.previous().get("ours", [])) - set(case.hosts)
    return states + [HostState(host, (QuarantineRecord(OWNER, "by an earlier bench"),)) for host in sorted(others)]


def _record(desk: BenchStore, decision: Decision) -> dict[str, Any]:
    """Return the record of a quarantine; its time is by the host's own clock, as are those of its checks."""
    said = desk.said(decision.host)
    now = said["measured"][-1]["now"] if said["measured"] else said["seen"]["now"]
    return {
        "schema": QUARANTINE_SCHEMA,
        "host": decision.host,
        "owner": OWNER,
        "reason": decision.reason,
        "time": now,
        "clock": decision.host,
        "verdicts": [verdict.to_json() for verdict in decision.verdicts],
    }


def _pass(desk: BenchStore, case: BenchedFleet, host: str) -> dict[str, Any]:
    said = desk.said(host)
    return {
        "schema": PASSED_SCHEMA,
        "host": host,
        "tier": case.tier,
        "time": said["measured"][-1]["now"],
        "fingerprint": said["seen"]["fingerprint"],
    }


def _ran(desk: BenchStore, hosts: Iterable[str], name: str) -> bool:
    return any(step["name"] == name for host in hosts for each in desk.said(host)["measured"] for step in each["steps"])
