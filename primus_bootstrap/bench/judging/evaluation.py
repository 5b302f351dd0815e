"""Collect what the hosts of a bench reported, and evaluate the steps that each host ran alone."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.bench.judging.floors import load_floors
from primus_bootstrap.bench.judging.verdicts import evaluate_results
from primus_bootstrap.bench.results.reader import parse_lines
from primus_bootstrap.core.verdicts import Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
    from primus_bootstrap.bench.quarantine.policy import Policy
    from primus_bootstrap.bench.results.history import History
    from primus_bootstrap.bench.results.host_answers import HostAnswers, StepOutput
    from primus_bootstrap.bench.results.reader import Result
    from primus_bootstrap.bench.results.store import BenchStore

_FIX_NO_PROGRAM = "install primus-cli on the host: primus-bootstrap apply hosts.yaml --phase gpu"
_MAX_PRINTED_CHARS = 300


@dataclass(frozen=True, slots=True)
class BenchedFleet:
    """The hosts of a bench and how it is evaluated."""

    cluster: str  # name of the cluster
    hosts: tuple[str, ...]  # the hosts of this bench
    gpu_nodes: int  # number of GPU nodes in the cluster
    policy_file: str  # the site's policy; empty for the shipped one
    tier: str  # name of the tier
    limit_percent: float  # share of the GPU nodes that the bench may quarantine
    now: float  # the controller's clock (seconds since the epoch)


@dataclass(frozen=True, slots=True)
class CollectedResults:
    """What the hosts reported."""

    answers: Mapping[str, HostAnswers]  # by host
    results: tuple[Result, ...]  # results of all steps
    verdicts: tuple[Verdict, ...]  # node checks, invalid result lines, and steps or hosts without an answer
    measured: tuple[str, ...]  # hosts that ran at least one step
    lost: tuple[str, ...]  # hosts without an answer
    busy: tuple[str, ...]  # hosts on which jobs ran
    rounds: int  # number of rounds of reruns so far


def collect(store: BenchStore, fleet: BenchedFleet) -> CollectedResults:
    """Read the answers of all hosts."""
    answers = {host: store.answers(host) for host in fleet.hosts}
    results: list[Result] = []
    verdicts: list[Verdict] = []
    for host, host_answers in answers.items():
        for step in host_answers.steps:
            step_results, step_verdicts = read_step(host, step)
            results += step_results
            verdicts += step_verdicts
    lost = tuple(host for host, given in answers.items() if given.facts is None or (given.requested and not given.rounds))
    return CollectedResults(
        answers=answers,
        results=tuple(results),
        verdicts=(*verdicts, *(_lost_verdict(host) for host in lost)),
        measured=tuple(host for host, given in answers.items() if given.rounds),
        lost=lost,
        busy=tuple(host for host, given in answers.items() if any(step.jobs for step in given.steps)),
        rounds=store.rounds_done(),
    )


def read_step(host: str, step: StepOutput) -> tuple[list[Result], list[Verdict]]:
    """Return results and verdicts of one step. A step without an answer is `unknown`, with the end of its output."""
    if step.name == "preflight":
        return [], _preflight_verdicts(host, step)
    if step.jobs:
        return [], [_busy_verdict(host, step)]
    if not step.results:
        return [], [_no_answer(host, f"bench_{step.name}", step)]
    lines = parse_lines((line.encode() for line in step.results), name=f"{host}: {step.name}", host=host)
    results = [replace(result, host=host) for result in lines.results]
    problems = [replace(verdict, host=host) for verdict in lines.problems]
    explained = problems or any(result.error or result.correct is False for result in results)
    if (step.error or step.code) and not explained:
        problems.append(_no_answer(host, f"bench_{step.name}", step))
    return results, problems


def _preflight_verdicts(host: str, step: StepOutput) -> list[Verdict]:
    try:
        records = json.loads(step.stdout)["verdicts"]
        verdicts = [parse_verdict({**record, "host": host}) for record in records]
    except (ValueError, KeyError, TypeError):
        return [_no_answer(host, "preflight", step)]
    return verdicts or [_no_answer(host, "preflight", step)]


def _no_answer(host: str, check: str, step: StepOutput) -> Verdict:
    command = "preflight" if check == "preflight" else f"direct -- benchmark {step.name}"
    # `error` ends with this text if the program of the step does not exist.
    not_installed = step.error.endswith(os.strerror(errno.ENOENT))
    return Verdict(
        check=check,
        host=host,
        verdict="unknown",
        expected="an answer",
        reason="; ".join(part for part in (step.error or f"exit code {step.code}", step.last_words(_MAX_PRINTED_CHARS)) if part),
        fix=_FIX_NO_PROGRAM if not_installed else f"run it on the host and read its output: primus-cli {command}",
        started=step.started,
        seconds=step.seconds,
    )


def _busy_verdict(host: str, step: StepOutput) -> Verdict:
    """Return `unknown` for a step that ran beside jobs; its values and its exit code do not count."""
    return Verdict(
        check=f"bench_{step.name}",
        host=host,
        verdict="unknown",
        expected="no jobs while it is measured",
        found=step.jobs_text(),
        reason=f"jobs run on it ({step.jobs_text()}): {step.error or 'values measured beside jobs do not count'}",
        fix=f"quarantine it (primus-bootstrap node quarantine hosts.yaml {host} --reason bench), bench it when its jobs have ended, "
        "then release it",
        started=step.started,
        seconds=step.seconds,
    )


def _lost_verdict(host: str) -> Verdict:
    return Verdict(
        check="bench_host",
        host=host,
        verdict="unknown",
        expected="an answer",
        reason="it was lost during the bench",
        fix="make it reachable, then bench it again",
    )


def evaluate_hosts(collected: CollectedResults, history: History) -> BenchEvaluation:
    """Evaluate what each host measured alone."""
    return evaluate_results(
        collected.results,
        floors=load_floors(),
        history=history,
        hosts=collected.measured,
        others=collected.verdicts,
        rounds_done=collected.rounds,
    )


def relevant_verdicts(evaluation: BenchEvaluation, policy: Policy) -> list[Verdict]:
    """Return the verdicts that quarantine a host, or keep one out of service."""
    relevant = []
    for verdict in evaluation.verdicts:
        rule = policy.rule(verdict.check)
        holds = verdict.verdict == "unknown" and rule.on_unknown(evaluation.codes.get(verdict)) == "hold"
        if holds or (verdict.verdict == "fail" and rule.fail == "quarantine"):
            relevant.append(verdict)
    return relevant
