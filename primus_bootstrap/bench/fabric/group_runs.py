"""One program on several hosts at once: which hosts run together, and whether it went well. Pure functions and plain data.

pass     every host ended well, and what was computed is right
fail     a wrong result, or a run that failed
unknown  a host was lost, took a job or could not start, the run hung or was ended by somebody: nothing is held against anybody
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.results.reader import parse_lines
from primus_bootstrap.bench.results.store import jobs_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.fabric.bisection import Answer
    from primus_bootstrap.bench.results.reader import Result

METRIC = "bus_gb_per_s"
# workloads/common/errors.py: StalledError.
_STALLED = 77
# primus-cli could not start it: its UsageError, PlanError and StepError, and what shells and container engines say of programs.
_NOT_STARTED = (2, 3, 4, 125, 126, 127)
# Ended by somebody (or by the kernel, for memory), seen by a shell or by the parent.
_ENDED = (*(128 + number for number in (signal.SIGTERM, signal.SIGKILL)), -signal.SIGTERM, -signal.SIGKILL)
# How torch says that the port of the meeting is another program's.
_PORT_TAKEN = ("EADDRINUSE", "address already in use")
_SAID_CHARS = 200


@dataclass(frozen=True, slots=True)
class GroupRun:
    """A group that runs together. `step` is the number of its step in the tier; hosts are in the order of their ranks."""

    step: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupRunResult:
    """A run that has ended. `lines` are its results of bus bandwidth; `starts` when it began, each by the host's own clock (epoch, s)."""

    run: GroupRun
    answer: Answer
    reason: str = ""
    lines: tuple[str, ...] = ()
    starts: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def results(self) -> tuple[Result, ...]:
        """Return the bus bandwidths, as results of the whole group."""
        return parse_lines([line.encode() for line in self.lines], name=",".join(self.run.hosts)).results if self.lines else ()

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain data for `json.dumps`."""
        return {
            "step": self.run.step,
            "hosts": list(self.run.hosts),
            "answer": self.answer,
            "reason": self.reason,
            "lines": list(self.lines),
            "starts": dict(self.starts),
            "seconds": self.seconds,
        }


def parse_ran(data: Mapping[str, Any]) -> GroupRunResult:
    """Return a run from what `to_json` wrote."""
    run = GroupRun(int(data["step"]), tuple(data["hosts"]))
    return GroupRunResult(run, data["answer"], data["reason"], tuple(data["lines"]), data["starts"], float(data["seconds"]))


def read_ran(run: GroupRun, said: Mapping[str, Mapping[str, Any]]) -> GroupRunResult:
    """Return how a run went.

    Args:
        run: The run.
        said: By host `{"step": what the step gave}`, or why it gave nothing: `{"absent": …}` where it could not begin, `{"cut": …}` where
            it was ended. A host that is missing was lost.
    """
    steps = {host: said[host]["step"] for host in run.hosts if "step" in said.get(host, {})}
    starts = {host: float(step["started"]) for host, step in steps.items()}
    seconds = max((float(step["seconds"]) for step in steps.values()), default=0.0)
    lines = [line for step in steps.values() for line in step["results"]]
    reading = parse_lines([line.encode() for line in lines], name=",".join(run.hosts)) if lines else None
    results = reading.results if reading else ()
    answer, reason = _answer(run.hosts, said, steps, results)
    kept = tuple(line for line in lines if f'"{METRIC}"' in line) if answer == "pass" else ()
    return GroupRunResult(run, answer, reason, kept, starts, seconds)


def _answer(
    hosts: Sequence[str], said: Mapping[str, Mapping[str, Any]], steps: Mapping[str, Mapping[str, Any]], results: Sequence[Result]
) -> tuple[Answer, str]:
    busy = next((host for host, step in steps.items() if step["jobs"]), None)
    if busy is not None:
        return "unknown", f"{busy}: {jobs_beside(steps[busy])}"
    wrong = next((result for result in results if result.correct is False), None)
    if wrong is not None:
        return "fail", f"the result is wrong: {wrong.series.text()}"
    gave = {host: said.get(host, {}) for host in hosts}
    # Whoever was missing comes before those who were ended because of it.
    for host in sorted(hosts, key=lambda host: "cut" in gave[host] or host in steps):
        why = _no_answer(steps[host]) if host in steps else str(gave[host].get("absent") or gave[host].get("cut") or "it was lost")
        if why:
            return "unknown", f"{host}: {why}"
    for host, step in steps.items():
        if step["code"]:
            error = next((result.error for result in results if result.error), "") or _last_words(step)
            return "fail", f"{host}: exit {step['code']}: {error}"
    if not any(result.series.metric == METRIC and result.value is not None for result in results):
        return "unknown", "it ended well and left no bus bandwidth"
    return "pass", ""


def jobs_beside(step: Mapping[str, Any]) -> str:
    """Return in words what jobs ran beside a host's part."""
    return f"jobs run on it: {jobs_in_words(step['jobs'])}"


def _no_answer(step: Mapping[str, Any]) -> str:
    """Return why a host's part says nothing of the fabric; empty where it does."""
    if step["error"]:
        return str(step["error"])
    if step["code"] == _STALLED:
        return "it took longer than its limit"
    if step["code"] in _NOT_STARTED:
        return f"it could not start (exit {step['code']}): {_last_words(step)}"
    if step["code"] in _ENDED:
        return f"somebody ended it (exit {step['code']})"
    printed = f"{step['stdout']}\n{step['stderr']}"
    return "the port of the meeting was taken" if step["code"] and any(words in printed for words in _PORT_TAKEN) else ""


def _last_words(step: Mapping[str, Any]) -> str:
    return " ".join((step["stderr"] or step["stdout"])[-_SAID_CHARS:].split())
