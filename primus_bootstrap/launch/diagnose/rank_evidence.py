"""What each rank's record and last lines say by themselves, before ranks are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose.causes import CAUSE, HARDWARE, OUTSIDE, Cause, by_signal, match_log
from primus_bootstrap.launch.ranks import rank_log

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from primus_bootstrap.launch.ranks.rank_log import Line, RankRecord

# How much of a log's end is looked at. A warning from hours before the end, which the program survived, is not its cause; NCCL's watchdog
# can keep a failed rank for its heartbeat time-out of 8 minutes (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC).
_TAIL_BYTES, _TAIL_LINES, _TAIL_S = 1 << 19, 400, 1800.0
_ERROR = re.compile(r"Traceback \(most recent call last\)|^(\[rank\d+\]: )?[\w.]*(Error|Exception)\b|terminate called|core dumped")
# A program that reports another step after an error has survived it: `step 12 loss 2.4`, `iteration 12/ 500 | lm loss: 2.4`.
_PROGRESS = re.compile(r"(?i)\b(step|iteration|iter|epoch)\b\W{0,12}\d+.*\bloss\b")
_SPECIAL_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True)
class Evidence:
    """One line that speaks for a cause: where it stands, and when it was written (None: not known)."""

    cause: Cause
    file: str
    number: int
    text: str
    time: float | None = None
    node: str = ""
    rank: int | None = None

    @property
    def place(self) -> str:
        """The place as people write it: file:line, or the file alone."""
        return f"{self.file}:{self.number}" if self.number else self.file


@dataclass(frozen=True)
class RankView:
    """One rank: its record, its last lines, what they stand for, and when its first error was written."""

    record: RankRecord
    tail: tuple[Line, ...]
    evidence: tuple[Evidence, ...]
    error_at: float | None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of all causes that its lines stand for."""
        return frozenset(item.cause.kind for item in self.evidence)

    @property
    def own(self) -> Evidence | None:
        """The first line that says why this rank itself ended."""
        return next((item for item in self.evidence if item.cause.kind in (CAUSE, HARDWARE, OUTSIDE)), None)

    @property
    def first(self) -> Evidence | None:
        """The first line of its own cause, else the first of any."""
        return self.own or next(iter(self.evidence), None)

    @property
    def failed_by_itself(self) -> bool:
        """Say whether it ended for a reason of its own: it names one, or it failed without having waited for others."""
        if self.own:
            return True
        if self.evidence:
            return False
        return not self.record.ended_by_others or self.error_before_stop

    @property
    def error_before_stop(self) -> bool:
        """Say whether an error was written before it was asked to stop."""
        return self.error_at is not None and self.error_at < (self.record.stopped_at or 0.0)

    @property
    def failed_at(self) -> float:
        """When it failed, in seconds since the epoch: its first error, else its end."""
        times = [item.time for item in (self.first,) if item and item.time is not None]
        if self.error_at is not None:
            times.append(self.error_at)
        return min([*times, self.record.ended or float("inf")])


def look(run_dir: Path, record: RankRecord) -> RankView:
    """Read the end of a rank's log."""
    lines = rank_log.read_lines(run_dir, record, limit_bytes=_TAIL_BYTES)[-_TAIL_LINES:]
    earliest = (record.ended or record.last_output or 0.0) - _TAIL_S
    tail = tuple(line for line in lines if line.time is None or line.time >= earliest)
    file = f"logs/{rank_log.log_path(run_dir, record.rank).name}"
    final = tail[max((index for index, line in enumerate(tail) if _PROGRESS.search(line.text)), default=0) :]
    evidence = [*find_evidence(final, file, node=record.node, rank=record.rank), *_from_record(record)]
    if len(evidence) > 1:
        evidence = [item for item in evidence if item.cause.kind != OUTSIDE]
    errors = (line.time for line in final if line.time is not None and _ERROR.search(line.text))
    return RankView(record, tail, tuple(evidence), next(errors, None))


def find_evidence(lines: Iterable[Line], file: str, *, node: str = "", rank: int | None = None) -> list[Evidence]:
    """Return the lines that stand for a cause, the first one of each cause."""
    found: dict[str, Evidence] = {}
    for line in lines:
        cause = match_log(line.text)
        if cause and cause.name not in found:
            found[cause.name] = Evidence(cause, file, line.number, line.text.strip(), line.time, node, rank)
    return list(found.values())


def describe_end(record: RankRecord) -> str:
    """Say how a rank ended."""
    if record.exit_code is None:
        return "without a recorded end"
    if record.signal:
        return f"by signal {record.signal} ({_SPECIAL_SIGNALS.get(record.signal, 'another one')})"
    return f"with exit code {record.exit_code}"


def _from_record(record: RankRecord) -> list[Evidence]:
    """Return what the record itself stands for: a log that could not be written, a signal."""
    file = f"logs/rank-{record.rank:05d}.json"
    found: list[Evidence] = []
    cause = match_log(record.problem)
    if cause:
        found.append(Evidence(cause, file, 0, f"the log could not be written: {record.problem}", record.ended, record.node, record.rank))
    cause = None if record.ended_by_others else by_signal(record.signal)
    if cause:
        found.append(Evidence(cause, file, 0, f"the program ended {describe_end(record)}", record.ended, record.node, record.rank))
    return found
