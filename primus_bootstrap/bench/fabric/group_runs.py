"""Decide whether a run over several hosts passed, failed, or gave no answer. Pure functions.

pass     the program ended well on every host, and the result is right
fail     the result is wrong, or the program failed
unknown  a host was lost, runs a job or could not start; or the run hung or was ended from outside
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from primus_bootstrap.bench.results.group_records import GroupAnswer, GroupRunResult
from primus_bootstrap.bench.results.reader import parse_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.results.group_records import Answer, GroupRun
    from primus_bootstrap.bench.results.host_answers import StepOutput
    from primus_bootstrap.bench.results.reader import Result

METRIC = "bus_gb_per_s"
# workloads/common/errors.py: StalledError.
_EXIT_STALLED = 77
# primus-cli could not start the program (UsageError, PlanError, StepError), or a shell or container engine could not.
_EXITS_NOT_STARTED = (2, 3, 4, 125, 126, 127)
# Ended by a signal from outside (or by the kernel, for memory), as a shell or the parent process reports it.
_EXITS_KILLED = (*(128 + number for number in (signal.SIGTERM, signal.SIGKILL)), -signal.SIGTERM, -signal.SIGKILL)
# Messages of torch when another program uses the master port.
_PORT_IN_USE = ("EADDRINUSE", "address already in use")
_MAX_PRINTED_CHARS = 200


def evaluate_group_run(run: GroupRun, answers: Mapping[str, GroupAnswer]) -> GroupRunResult:
    """Return the result of a group run; a host without an answer was lost."""
    steps = {host: step for host in run.hosts if host in answers and (step := answers[host].step)}
    lines = [line for step in steps.values() for line in step.results]
    results = parse_lines([line.encode() for line in lines], name=",".join(run.hosts)).results if lines else ()
    answer, reason = _evaluate(run.hosts, answers, steps, results)
    return GroupRunResult(
        run.step,
        run.hosts,
        answer,
        reason,
        lines=tuple(line for line in lines if f'"{METRIC}"' in line) if answer == "pass" else (),
        starts={host: step.started for host, step in steps.items()},
        seconds=max((step.seconds for step in steps.values()), default=0.0),
    )


def _evaluate(
    hosts: Sequence[str], answers: Mapping[str, GroupAnswer], steps: Mapping[str, StepOutput], results: Sequence[Result]
) -> tuple[Answer, str]:
    busy = next((host for host, step in steps.items() if step.jobs), None)
    if busy is not None:
        return "unknown", f"{busy}: {busy_reason(steps[busy])}"
    wrong = next((result for result in results if result.correct is False), None)
    if wrong is not None:
        return "fail", f"the result is wrong: {wrong.series.text()}"
    given = {host: answers.get(host, GroupAnswer()) for host in hosts}
    # A host that did not start comes before those that were ended because of it.
    for host in sorted(hosts, key=lambda host: bool(given[host].cut) or host in steps):
        reason = _no_answer(steps[host]) if host in steps else given[host].absent or given[host].cut or "it was lost"
        if reason:
            return "unknown", f"{host}: {reason}"
    for host, step in steps.items():
        if step.code:
            error = next((result.error for result in results if result.error), "") or step.last_words(_MAX_PRINTED_CHARS)
            return "fail", f"{host}: exit code {step.code}: {error}"
    if not any(result.series.metric == METRIC and result.value is not None for result in results):
        return "unknown", "it ended well, but wrote no bus bandwidth"
    return "pass", ""


def busy_reason(step: StepOutput) -> str:
    """Return which jobs ran beside a host's part."""
    return f"jobs run on it: {step.jobs_text()}"


def _no_answer(step: StepOutput) -> str:
    """Return why a host's part gives no information about the fabric; empty if it does."""
    if step.error:
        return step.error
    if step.code == _EXIT_STALLED:
        return "it exceeded its time limit"
    if step.code in _EXITS_NOT_STARTED:
        return f"it could not start (exit code {step.code}): {step.last_words(_MAX_PRINTED_CHARS)}"
    if step.code in _EXITS_KILLED:
        return f"it was killed from outside (exit code {step.code})"
    printed = f"{step.stdout}\n{step.stderr}"
    return "another program used the master port" if step.code and any(words in printed for words in _PORT_IN_USE) else ""
