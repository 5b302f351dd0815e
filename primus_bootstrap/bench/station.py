"""From what the hosts said to who serves: reads the desk, judges, asks the gate, and leaves decisions, history and reports."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.desk import read_policy, tier_of
from primus_bootstrap.bench.finished import make_run, write_run
from primus_bootstrap.bench.floors import load_floors
from primus_bootstrap.bench.gate import OWNER, PENDING, HostState, Standing, decide
from primus_bootstrap.bench.history import Fingerprint, History, append_history, read_history
from primus_bootstrap.bench.judge import judge
from primus_bootstrap.bench.records import new_records
from primus_bootstrap.bench.results import parse_lines
from primus_bootstrap.verdicts import Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.bench.desk import Desk
    from primus_bootstrap.bench.gate import Decision, Gate
    from primus_bootstrap.bench.judge import Judgement
    from primus_bootstrap.bench.policy import Policy, Tier
    from primus_bootstrap.bench.results import Result

QUARANTINE_SCHEMA = "primus.quarantine/1"
PASSED_SCHEMA = "primus.bench-pass/1"
# The check that says what the policy makes of all of a host's others.
OVERALL = "bench"
_FIX_STEP = "run it on the host by hand and read what it prints: primus-cli"
_SAID_CHARS = 300
_JOBS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged: these hosts, of a fleet of so many GPU hosts. `now` is seconds since the epoch, by the clock here."""

    cluster: str
    hosts: tuple[str, ...]
    fleet: int
    policy_file: str
    tier: str
    limit_percent: float
    now: float


@dataclass(frozen=True, slots=True)
class Found:
    """What the hosts of a case said. `measured` are those that ran something; `lost` those of which nothing came back."""

    results: tuple[Result, ...]
    verdicts: tuple[Verdict, ...]
    measured: tuple[str, ...]
    lost: tuple[str, ...]
    rounds: int


def ask_again(desk: Desk, case: Case) -> int:
    """Judge the first round; leave on the desk what more repeats can decide, and return on how many hosts."""
    found = read_desk(desk, case)
    judgement = _judge(desk, found)
    again: dict[str, dict[str, int]] = {}
    for wish in judgement.again:
        again.setdefault(wish.host, {})[wish.benchmark] = wish.repeats
    desk.write("again.json", again)
    return len(again)


def finish(desk: Desk, case: Case) -> tuple[Verdict, ...]:
    """Judge all rounds, decide, and leave decisions, history and reports; return what people have to see.

    The decisions come last: where a run is killed before them, nobody has passed, and the next one benches again.
    """
    found = read_desk(desk, case)
    if not found.measured and not found.lost:
        return ()
    policy = read_policy(case.policy_file).with_limit(case.limit_percent)
    tier = tier_of(policy, case.tier, asked_storage="storage" if _ran(desk, found.measured, "storage") else "")
    judgement = _judge(desk, found)
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
        history=_history(desk),
    )
    write_run(desk.folder, run, json.dumps(run.to_json()) + "\n", now=case.now)
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


def shown(found: Found, judgement: Judgement, gate: Gate, policy: Policy) -> tuple[Verdict, ...]:
    """Return one verdict a benched host, and those that keep or take a host out; all the rest is in the reports."""
    decided = {each.host: each for each in gate.decisions}
    telling = []
    for verdict in judgement.verdicts:
        rule = policy.rule(verdict.check)
        holds = verdict.verdict == "unknown" and rule.on_unknown(judgement.codes.get(verdict)) == "hold"
        if holds or (verdict.verdict == "fail" and rule.fail == "quarantine"):
            telling.append(verdict)
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


def read_desk(desk: Desk, case: Case) -> Found:
    """Return what every host of the case said."""
    results: list[Result] = []
    verdicts: list[Verdict] = []
    measured, lost, rounds = [], [], 0
    for host in case.hosts:
        said = desk.said(host)
        if not said["seen"]:
            lost.append(host)
            verdicts.append(_lost(host))
        for number, each in enumerate(said["measured"]):
            rounds = max(rounds, number)
            for step in each["steps"]:
                found, told = read_step(host, step)
                results += found
                verdicts += told
        if said["measured"]:
            measured.append(host)
            verdicts += _busy(host, said, read_policy(case.policy_file).tiers[case.tier])
        elif said["asked"]:
            lost.append(host)
            verdicts.append(_lost(host))
    return Found(tuple(results), tuple(verdicts), tuple(measured), tuple(lost), rounds)


def read_step(host: str, step: Mapping[str, Any]) -> tuple[list[Result], list[Verdict]]:
    """Return what one step says; whatever it leaves open is unknown, with what it printed."""
    name = str(step["name"])
    if name == "preflight":
        return [], _preflight(host, step)
    if not step["results"]:
        return [], [_no_answer(host, f"bench_{name}", step)]
    reading = parse_lines((line.encode() for line in step["results"]), name=f"{host}: {name}", host=host)
    results = [replace(result, host=host) for result in reading.results]
    problems = [replace(verdict, host=host) for verdict in reading.problems]
    explained = problems or any(result.error or result.correct is False for result in results)
    if (step["error"] or step["code"]) and not explained:
        problems.append(_no_answer(host, f"bench_{name}", step))
    return results, problems


def _preflight(host: str, step: Mapping[str, Any]) -> list[Verdict]:
    try:
        records = json.loads(step["stdout"])["verdicts"]
        verdicts = [parse_verdict({**record, "host": host}) for record in records]
    except (ValueError, KeyError, TypeError):
        return [_no_answer(host, "preflight", step)]
    return verdicts or [_no_answer(host, "preflight", step)]


def _no_answer(host: str, check: str, step: Mapping[str, Any]) -> Verdict:
    printed = " ".join((step["stderr"] or step["stdout"])[-_SAID_CHARS:].split())
    reason = "; ".join(part for part in (step["error"] or f"exit {step['code']}", printed) if part)
    return Verdict(
        check=check,
        host=host,
        verdict="unknown",
        expected="an answer",
        reason=reason,
        fix=f"{_FIX_STEP} {'preflight' if check.startswith('preflight') else 'direct -- benchmark ' + check.removeprefix('bench_')}",
        started=float(step["started"]),
        seconds=float(step["seconds"]),
    )


def _busy(host: str, said: Mapping[str, Any], tier: Tier) -> list[Verdict]:
    """Say of a host with jobs that its benchmarks were left out."""
    jobs = said["seen"].get("jobs") or []
    if not jobs or all(step.run == "preflight" for step in tier.steps):
        return []
    return [
        Verdict(
            check="bench_busy",
            host=host,
            verdict="unknown",
            expected="no jobs while it is measured",
            found=", ".join(jobs[:_JOBS_SHOWN]),
            reason=f"jobs run on it ({len(jobs)}), so its benchmarks were left out",
            fix="take it out of service (node quarantine), bench it when its jobs have ended, then release it",
            started=float(said["seen"]["now"]),
        )
    ]


def _lost(host: str) -> Verdict:
    return Verdict(
        check="bench_host",
        host=host,
        verdict="unknown",
        expected="an answer",
        reason="it was lost during the bench",
        fix="bring it up, then bench it",
    )


def _judge(desk: Desk, found: Found) -> Judgement:
    return judge(
        found.results,
        floors=load_floors(),
        history=_history(desk),
        hosts=found.measured,
        others=found.verdicts,
        rounds_done=found.rounds,
    )


def _history(desk: Desk) -> History:
    return read_history(desk.folder / "history.jsonl")


def _gate(  # noqa: PLR0913, PLR0917 - the whole of what it rests on
    desk: Desk, case: Case, found: Found, judgement: Judgement, policy: Policy, tier: Tier
) -> tuple[Gate, tuple[str, ...]]:
    """Return the decisions, and the hosts that would join if they were new: those have passed."""
    verdicts = list(judgement.verdicts)
    common: dict[str, Any] = {"policy": policy, "tier": tier, "gpu_nodes": case.fleet, "now": case.now, "codes": judgement.codes}
    gate = decide(_states(desk, case), verdicts, breaker=desk.breaker(), **common)
    newcomers = [HostState(host, (Standing(OWNER, PENDING, -math.inf, own_clock=True),)) for host in found.measured]
    passes = tuple(each.host for each in decide(newcomers, verdicts, **common).decisions if each.action == "release")
    return gate, passes


def _states(desk: Desk, case: Case) -> list[HostState]:
    """Return what keeps each host out of service: of hosts outside this run, what was decided last."""
    states = []
    for host in case.hosts:
        seen = desk.said(host)["seen"]
        record = seen.get("record") or {}
        standing = (
            (Standing(str(record["owner"]), str(record["reason"]), float(record["time"]), own_clock=record.get("clock", host) == host),)
            if record
            else ()
        )
        states.append(HostState(host, standing, known=bool(seen)))
    others = set(desk.previous().get("ours", [])) - set(case.hosts)
    return states + [HostState(host, (Standing(OWNER, "by an earlier bench"),)) for host in sorted(others)]


def _record(desk: Desk, decision: Decision) -> dict[str, Any]:
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


def _pass(desk: Desk, case: Case, host: str) -> dict[str, Any]:
    said = desk.said(host)
    return {
        "schema": PASSED_SCHEMA,
        "host": host,
        "tier": case.tier,
        "time": said["measured"][-1]["now"],
        "fingerprint": said["seen"]["fingerprint"],
    }


def _ran(desk: Desk, hosts: Iterable[str], name: str) -> bool:
    return any(step["name"] == name for host in hosts for each in desk.said(host)["measured"] for step in each["steps"])
