"""What the hosts of a bench said, read strictly: results, verdicts, and which of them were lost. And what their own steps come to."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.judging.floors import load_floors
from primus_bootstrap.bench.judging.verdicts import judge
from primus_bootstrap.bench.results.history import History, read_history
from primus_bootstrap.bench.results.reader import parse_lines
from primus_bootstrap.bench.results.store import jobs_in_words
from primus_bootstrap.core.verdicts import Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
    from primus_bootstrap.bench.quarantine.policy import Policy
    from primus_bootstrap.bench.results.reader import Result
    from primus_bootstrap.bench.results.store import BenchStore

_FIX_STEP = "run it on the host by hand and read what it prints: primus-cli"
_FIX_NO_PROGRAM = "the host has no primus-cli yet: primus-bootstrap apply --phase gpu"
_SAID_CHARS = 300


@dataclass(frozen=True, slots=True)
class BenchedFleet:
    """What is judged: these hosts, of a fleet of so many GPU hosts. `now` is seconds since the epoch, by the clock here."""

    cluster: str
    hosts: tuple[str, ...]
    fleet: int
    policy_file: str
    tier: str
    limit_percent: float
    now: float


@dataclass(frozen=True, slots=True)
class CollectedResults:
    """What the hosts of a case said. `measured` ran something, of those that were `lost` nothing came back, on `busy` ones are jobs."""

    results: tuple[Result, ...]
    verdicts: tuple[Verdict, ...]
    measured: tuple[str, ...]
    lost: tuple[str, ...]
    busy: tuple[str, ...]
    rounds: int


def read_desk(desk: BenchStore, case: BenchedFleet) -> CollectedResults:
    """Return what every host of the case said."""
    results: list[Result] = []
    verdicts: list[Verdict] = []
    measured, lost, busy = [], [], []
    for host in case.hosts:
        said = desk.said(host)
        if not said["seen"]:
            lost.append(host)
            verdicts.append(_lost(host))
        steps = [step for each in said["measured"] for step in each["steps"]]
        for step in steps:
            found, told = read_step(host, step)
            results += found
            verdicts += told
        if any(step["jobs"] for step in steps):
            busy.append(host)
        if said["measured"]:
            measured.append(host)
        elif said["asked"]:
            lost.append(host)
            verdicts.append(_lost(host))
    return CollectedResults(tuple(results), tuple(verdicts), tuple(measured), tuple(lost), tuple(busy), desk.rounds_done())


def read_step(host: str, step: Mapping[str, Any]) -> tuple[list[Result], list[Verdict]]:
    """Return what one step says; whatever it leaves open is unknown, with what it printed."""
    name = str(step["name"])
    if name == "preflight":
        return [], _preflight(host, step)
    if step["jobs"]:
        return [], [_beside(host, step)]
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
    words = "preflight" if check.startswith("preflight") else f"direct -- benchmark {check.removeprefix('bench_')}"
    # Of a step, `error` is what kept it from being run, the program's name before it: whatever primus_cli_program says.
    absent = str(step["error"]).endswith(os.strerror(errno.ENOENT))
    return Verdict(
        check=check,
        host=host,
        verdict="unknown",
        expected="an answer",
        reason=reason,
        fix=_FIX_NO_PROGRAM if absent else f"{_FIX_STEP} {words}",
        started=float(step["started"]),
        seconds=float(step["seconds"]),
    )


def _beside(host: str, step: Mapping[str, Any]) -> Verdict:
    """Say of a step beside which jobs ran that nothing is known: neither what it measured counts, nor how it ended."""
    return Verdict(
        check=f"bench_{step['name']}",
        host=host,
        verdict="unknown",
        expected="no jobs while it is measured",
        found=jobs_in_words(step["jobs"]),
        reason=f"jobs run on it ({jobs_in_words(step['jobs'])}): {step['error'] or 'what was measured beside them does not count'}",
        fix="take it out of service (node quarantine), bench it when its jobs have ended, then release it",
        started=float(step["started"]),
        seconds=float(step["seconds"]),
    )


def _lost(host: str) -> Verdict:
    return Verdict(
        check="bench_host",
        host=host,
        verdict="unknown",
        expected="an answer",
        reason="it was lost during the bench",
        fix="bring it up, then bench it",
    )


def judge_case(desk: BenchStore, found: CollectedResults) -> BenchEvaluation:
    """Judge what each host measured by itself."""
    return judge(
        found.results,
        floors=load_floors(),
        history=read_past(desk),
        hosts=found.measured,
        others=found.verdicts,
        rounds_done=found.rounds,
    )


def read_past(desk: BenchStore) -> History:
    """Return what was measured in earlier benches."""
    return read_history(desk.folder / "history.jsonl")


def telling_verdicts(judgement: BenchEvaluation, policy: Policy) -> list[Verdict]:
    """Return the verdicts that keep a host out, or take one out."""
    telling = []
    for verdict in judgement.verdicts:
        rule = policy.rule(verdict.check)
        holds = verdict.verdict == "unknown" and rule.on_unknown(judgement.codes.get(verdict)) == "hold"
        if holds or (verdict.verdict == "fail" and rule.fail == "quarantine"):
            telling.append(verdict)
    return telling
