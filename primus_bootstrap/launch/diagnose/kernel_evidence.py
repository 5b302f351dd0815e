"""Choose the line of the kernel logs that explains a failure.

A kernel line is the cause only if it was logged shortly before the failure, if the run made no steps after it, if the kernel did not report
a recovery, and if it can explain what the logs of the ranks show. A GPU that was lost does not explain a KeyError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose.causes import CONSEQUENCE, HANG, HARDWARE, OUTSIDE, Cause, catalogue, match_kernel
from primus_bootstrap.launch.diagnose.rank_evidence import SURVIVED_AFTER_S, Evidence, RankView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.launch.diagnose.kernel_log import KernelLog

# How long before the failure a line may be. A rank that waits adds the time for which it waited. The limit is that of the ranks' own lines.
_BEFORE_S = 1800.0
# The driver may log an error some seconds after the program, and a killed process takes a while to end.
_KERNEL_DELAY_S, _KILL_DELAY_S = 30.0, 60.0
_KERNEL_SENDS = frozenset({7, 9})  # SIGBUS for lost memory, SIGKILL if the memory is full
_WAITED_MS, _WAITED_S = re.compile(r"\bran for (\d+) milliseconds"), re.compile(r"no progress for ([\d.]+) s")


@dataclass(frozen=True)
class KernelEvidence:
    """A kernel line that matches a cause."""

    line: Evidence
    killed: tuple[RankView, ...] = ()  # The ranks that the kernel killed
    by_pid: bool = False  # Whether it names the process of such a rank


@dataclass(frozen=True)
class Failure:
    """What the logs of the ranks show: the first rank, the time of its failure, and the cause that its log names."""

    first: RankView
    at: float
    cause: Cause | None
    evidence: tuple[Evidence, ...]


def explain(failure: Failure, views: Sequence[RankView], logs: Sequence[KernelLog]) -> tuple[KernelEvidence | None, tuple[Evidence, ...]]:
    """Return the kernel line that explains a failure, and the other lines that match a cause."""
    found = [item for log in logs for item in _matching(log, views)]
    explaining = [item for item in found if _in_time(item, failure, views) and _explains(item, failure)]
    order = {cause.name: index for index, cause in enumerate(catalogue())}
    chosen = min(explaining, key=lambda item: (not item.by_pid, order[item.line.cause.name], item.line.time or 0.0), default=None)
    until = failure.at + _KERNEL_DELAY_S
    others = (_with_age(item.line, failure.at) for item in found if item is not chosen and (item.line.time or 0.0) <= until)
    return chosen, tuple(others)


def _matching(log: KernelLog, views: Sequence[RankView]) -> Iterator[KernelEvidence]:
    for number, (at, text) in enumerate(log.lines, 1):
        match = match_kernel(text)
        if match is None:
            continue
        cause, groups = match
        if any(pattern.search(later) for _, later in log.lines[number:] for pattern in cause.recovered):
            continue
        pid = groups.groupdict().get("pid")
        killed, by_pid = _killed_ranks(cause, int(pid), log.node, at, views) if pid else ((), False)
        if killed or not pid:
            line = Evidence(cause, f"kernel log of {log.node}", number, text.strip(), at, log.node)
            yield KernelEvidence(line, killed, by_pid)


def _killed_ranks(cause: Cause, pid: int, node: str, at: float, views: Sequence[RankView]) -> tuple[tuple[RankView, ...], bool]:
    """Return the ranks of a node that the kernel killed, and whether the line names one of them.

    In a container, a rank does not know the process id that the kernel logs, and the killed process may be a child of a rank. So ranks that
    were killed at that time count, too.
    """
    on_node = [view for view in views if view.record.node == node]
    by_pid = tuple(view for view in on_node if view.record.pid == pid)
    killed = (view for view in on_node if view.record.signal in _KERNEL_SENDS or any(item.cause is cause for item in view.evidence))
    return by_pid or tuple(view for view in killed if -_KERNEL_DELAY_S <= (view.record.ended or at) - at <= _KILL_DELAY_S), bool(by_pid)


def _in_time(item: KernelEvidence, failure: Failure, views: Sequence[RankView]) -> bool:
    at = item.line.time or 0.0
    last_step = max((view.progress_at for view in views if view.progress_at is not None), default=0.0)
    earliest = max(failure.at - _BEFORE_S - _waited_s(failure.evidence), last_step - SURVIVED_AFTER_S)
    return earliest <= at <= failure.at + _KERNEL_DELAY_S


def _waited_s(evidence: Sequence[Evidence]) -> float:
    """Return for how long the ranks waited before they reported the failure."""
    found = [float(match[1]) / 1000 for item in evidence if (match := _WAITED_MS.search(item.text))]
    return max([*found, *(float(match[1]) for item in evidence if (match := _WAITED_S.search(item.text)))], default=0.0)


def _explains(item: KernelEvidence, failure: Failure) -> bool:
    cause, logged = item.line.cause, failure.cause
    if logged is None:
        return cause.kind == HARDWARE and (item.by_pid or failure.first.may_be_hardware)
    if item.by_pid or logged.name == cause.name or logged.name in cause.explains:
        return True
    return cause.kind == HARDWARE and logged.kind in (HANG, CONSEQUENCE, OUTSIDE)


def _with_age(line: Evidence, failed_at: float) -> Evidence:
    """Add how long before the failure an old line was logged."""
    age_s = failed_at - (line.time or failed_at)
    return line if age_s <= _BEFORE_S else replace(line, text=f"{line.text} ({age_s / 3600:.1f} h before the failure)")
