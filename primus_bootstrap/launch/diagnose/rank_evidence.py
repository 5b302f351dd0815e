"""Match the record and the last log lines of one rank with the known causes."""

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

# The end of a log that is searched: a warning hours before the end is not the cause. NCCL's watchdog can delay the end of a failed rank by
# its heartbeat time-out of 8 minutes (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC).
_TAIL_BYTES, _TAIL_LINES, _TAIL_S = 1 << 19, 400, 1800.0
_ERROR = re.compile(r"Traceback \(most recent call last\)|^(\[rank\d+\]: )?[\w.]*(Error|Exception)\b|terminate called|core dumped")
# Errors before such a line were not fatal: `step 12 loss 2.4`, `iteration 12/ 500 | lm loss: 2.4`.
_PROGRESS = re.compile(r"(?i)\b(step|iteration|iter|epoch)\b\W{0,12}\d+.*\bloss\b")
_SIGNAL_NAMES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True)
class Evidence:
    """One line that matches a cause, its file and line number, and its time (None: not known)."""

    cause: Cause
    file: str
    number: int
    text: str
    time: float | None = None
    node: str = ""
    rank: int | None = None

    @property
    def place(self) -> str:
        """The location as file:line, or the file only."""
        return f"{self.file}:{self.number}" if self.number else self.file


@dataclass(frozen=True)
class RankView:
    """One rank: its record, its last lines, the lines that match a cause, and the time of its first error."""

    record: RankRecord
    tail: tuple[Line, ...]
    evidence: tuple[Evidence, ...]
    error_at: float | None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of all causes that its lines match."""
        return frozenset(item.cause.kind for item in self.evidence)

    @property
    def own_cause(self) -> Evidence | None:
        """The first line with a cause in this rank itself, not in another rank."""
        return next((item for item in self.evidence if item.cause.kind in (CAUSE, HARDWARE, OUTSIDE)), None)

    @property
    def main_evidence(self) -> Evidence | None:
        """The first line with its own cause, else the first line with any cause."""
        return self.own_cause or next(iter(self.evidence), None)

    @property
    def failed_by_itself(self) -> bool:
        """Whether it failed independently of other ranks: its log has an own cause, or it has no evidence and was not stopped."""
        if self.own_cause:
            return True
        if self.evidence:
            return False
        return not self.record.ended_by_others or self.error_before_stop

    @property
    def error_before_stop(self) -> bool:
        """Whether it logged an error before it was told to stop."""
        return self.error_at is not None and self.error_at < (self.record.stopped_at or 0.0)

    @property
    def failed_at(self) -> float:
        """The time of its first error, else of its end, in seconds since the epoch."""
        times = [item.time for item in (self.main_evidence,) if item and item.time is not None]
        if self.error_at is not None:
            times.append(self.error_at)
        return min([*times, self.record.ended or float("inf")])


def read_rank(run_dir: Path, record: RankRecord) -> RankView:
    """Read the end of a rank's log and match it with the known causes."""
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
    """Return the first line of each matching cause."""
    found: dict[str, Evidence] = {}
    for line in lines:
        cause = match_log(line.text)
        if cause and cause.name not in found:
            found[cause.name] = Evidence(cause, file, line.number, line.text.strip(), line.time, node, rank)
    return list(found.values())


def describe_end(record: RankRecord) -> str:
    """Return how a rank ended, as the end of a sentence."""
    if record.exit_code is None:
        return "without a recorded end"
    if record.signal:
        name = _SIGNAL_NAMES.get(record.signal)
        return f"by signal {record.signal}" + (f" ({name})" if name else "")
    return f"with exit code {record.exit_code}"


def _from_record(record: RankRecord) -> list[Evidence]:
    """Return the evidence in the record itself: a log that could not be written, a signal."""
    file = f"logs/rank-{record.rank:05d}.json"
    found: list[Evidence] = []
    cause = match_log(record.problem)
    if cause:
        found.append(Evidence(cause, file, 0, f"the log could not be written: {record.problem}", record.ended, record.node, record.rank))
    cause = None if record.ended_by_others else by_signal(record.signal)
    if cause:
        found.append(Evidence(cause, file, 0, f"the program ended {describe_end(record)}", record.ended, record.node, record.rank))
    return found
