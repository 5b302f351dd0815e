"""Match the record and the last log lines of one rank with the known causes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose import log_lines
from primus_bootstrap.launch.diagnose.causes import CAUSE, CONSEQUENCE, HARDWARE, OUTSIDE, Cause, by_signal, match_log
from primus_bootstrap.launch.ranks import rank_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from primus_bootstrap.launch.ranks.rank_log import Line, RankRecord

# The end of a log that is searched: a warning hours before the end is not the cause. NCCL's watchdog can delay the end of a failed rank by
# its heartbeat time-out of 8 minutes (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC).
_TAIL_BYTES, _TAIL_LINES, _TAIL_S = 1 << 19, 400, 1800.0
_ERROR = re.compile(r"Traceback \(most recent call last\)|^(\[rank\d+\]: )?[\w.]*(Error|Exception)\b|terminate called|core dumped")
# The lines of one error follow each other within this time.
_MESSAGE_S = 1.0
# Ranks work in step. If a rank goes on for so long after an error of another one, that error was not fatal. Covers differences of clocks.
SURVIVED_AFTER_S = 60.0
# What the message of an exception names if a GPU or a collective failed.
_GPU_NAMED = re.compile(r"\b(CUDA|HIP|NCCL|RCCL|ROCm|HSA|GPU|XLA|cu(BLAS|DNN)|hip(BLAS|DNN)|MIOpen)|cuda|hsa_|nccl|Xla", re.ASCII)
_SIGNAL_NAMES = {1: "SIGHUP", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


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
    def location(self) -> str:
        """File and line as file:line, or the file only."""
        return f"{self.file}:{self.number}" if self.number else self.file


@dataclass(frozen=True)
class RankView:
    """One rank."""

    record: RankRecord  # Its exit record
    tail: tuple[Line, ...]  # Its last lines
    evidence: tuple[Evidence, ...]  # The lines that name a cause
    error_at: float | None  # The time of its first error
    noted: tuple[Evidence, ...] = ()  # Lines that match a cause but do not prove it: warnings, and errors that the program survived
    progress_at: float | None = None  # The time of its last step, if it is known
    last_exception: str = ""  # The line of its last exception; empty if it logged none

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
    def may_be_hardware(self) -> bool:
        """Whether hardware may be the reason: its last exception names a GPU or a GPU library, or it logged none."""
        return not self.last_exception or bool(_GPU_NAMED.search(self.last_exception))

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
    texts = [log_lines.plain(line.text) for line in tail]
    progress = log_lines.last_progress(texts)
    final = tail[progress or 0 :]
    evidence, noted = find_evidence(final, file, node=record.node, rank=record.rank)
    fatal = [item for item in evidence if _may_end_so(item, record)]
    noted += [item for item in evidence if item not in fatal]
    if progress is not None:  # NaN in a step is the cause only if no later line names one
        fatal.sort(key=lambda item: item.number == tail[progress].number)
    evidence = [*fatal, *_from_record(record)]
    if len(evidence) > 1:
        evidence = [item for item in evidence if item.cause.kind != OUTSIDE]
    return RankView(
        record,
        tail,
        tuple(evidence),
        error_at=_error_at(final),
        noted=tuple(noted),
        progress_at=None if progress is None else tail[progress].time,
        last_exception=log_lines.last_exception(texts[progress or 0 :]),
    )


def _error_at(lines: Sequence[Line]) -> float | None:
    """Return the time of the first error after which the program did not go on with ordinary output."""
    first: float | None = None
    last = 0.0
    for line in lines:
        if line.time is None:
            continue
        if _ERROR.search(line.text):
            first, last = line.time if first is None else first, line.time
        elif first is not None and line.time > last + _MESSAGE_S and log_lines.is_ordinary(log_lines.plain(line.text)):
            first = None
    return first


def _may_end_so(item: Evidence, record: RankRecord) -> bool:
    """Return whether a program with this error can end as it did: an exception of Python ends it with an exit code, not with a signal.

    If it was killed without a stop signal, it was running. Otherwise it may have been stopped, or have crashed, while it ended.
    """
    if not record.signal or item.cause.kind != CAUSE:
        return True
    running = record.signal == rank_log.SIGKILL and record.stopped_at is None
    return not item.cause.probed and not (running and log_lines.is_exception(log_lines.plain(item.text)))


def without_survived(views: Sequence[RankView]) -> tuple[RankView, ...]:
    """Turn errors of a rank into notes if it lived on and other ranks made steps after them."""
    last = max((view.progress_at for view in views if view.progress_at is not None), default=0.0)
    return tuple(_without_survived(view, last) for view in views)


def _without_survived(view: RankView, last_step: float) -> RankView:
    before = min(last_step, view.record.ended or last_step) - SURVIVED_AFTER_S
    survived = tuple(item for item in view.evidence if item.time is not None and item.time < before)
    kept = tuple(item for item in view.evidence if item not in survived)
    error_at = None if view.error_at is not None and view.error_at < before else view.error_at
    return replace(view, evidence=kept, noted=(*view.noted, *survived), error_at=error_at)


def find_evidence(lines: Sequence[Line], file: str, *, node: str = "", rank: int | None = None) -> tuple[list[Evidence], list[Evidence]]:
    """Return the first line that names each cause, and lines that match a cause but do not prove it."""
    texts = [log_lines.plain(line.text) for line in lines]
    dead = log_lines.dead_lines(texts)
    matching = {index: cause for index, text in enumerate(texts) if (cause := match_log(text))}
    proving = {index: proven for index, cause in matching.items() if index not in dead and (proven := _proving(texts[index], cause))}
    alive = ["" if index in dead else text for index, text in enumerate(texts)]
    report = log_lines.last_report(alive, [index for index, cause in proving.items() if cause.kind in (CAUSE, HARDWARE)])
    found: dict[str, Evidence] = {}
    noted: dict[str, Evidence] = {}
    for index, matched in matching.items():
        cause = proving.get(index)
        into = noted if cause is None or (index < report.start and _handled(texts[index], cause, report)) else found
        line, cause = lines[index], cause or matched
        into.setdefault(cause.name, Evidence(cause, file, line.number, line.text.strip(), line.time, node, rank))
    return list(found.values()), list(noted.values())


def _handled(text: str, cause: Cause, report: log_lines.Report) -> bool:
    """Return whether the program handled an error before the exception that ended it."""
    if cause.kind not in (CAUSE, CONSEQUENCE):
        return False
    return not report.named or cause.probed or log_lines.is_exception(text)


def _proving(text: str, cause: Cause) -> Cause | None:
    """Return the cause that a matching line proves; None if its logger marks it as information or a warning."""
    severity = log_lines.severity(text)
    if severity == log_lines.NCCL_WARNING:
        return match_log(text, nccl_warning=True)
    return cause if severity == log_lines.ERROR else None


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
