"""Diagnose a failed run: find the rank that failed first, the cause, and the fix.

The input is the run folder: exit records, logs of the ranks and of torchrun, and kernel logs. A cause is reported only if a line proves it:
it matches data/causes.yml, it is no warning, and the run did not go on after it. Otherwise the cause is unknown, and the text contains the
last lines of the rank that failed first. A wrong cause is worse than none, because people drain good nodes.
"""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.detect.render import files
from primus_bootstrap.launch.diagnose import kernel_evidence, kernel_log
from primus_bootstrap.launch.diagnose.causes import CONSEQUENCE, HANG, OUTSIDE, Cause
from primus_bootstrap.launch.diagnose.hang import Suspect, named_in_message, stopped_first, without_end
from primus_bootstrap.launch.diagnose.rank_evidence import Evidence, RankView, describe_end, find_evidence, read_rank, without_survived
from primus_bootstrap.launch.ranks import rank_log
from primus_bootstrap.launch.ranks.rank_log import ENDED_FROM_OUTSIDE, Line, RankRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SCHEMA = "primus.failure/1"
FILE = "failure.json"
_LAUNCHER_BYTES = 1 << 19
_SHOWN_LINES = 20
_LEAST_NODES = 2  # so that a connection has two ends
_RANK_LINE, _DIAGNOSIS_LINE = re.compile(r"\[[^\]/]+/\d+\] "), re.compile(r"^rank \d+ on \S+ failed first|^cause: ")


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a run."""

    run_dir: str
    ranks: int
    first: RankRecord | None = None  # the record of the rank that failed first, or None
    at: float | None = None  # the time of that failure, in seconds since the epoch
    cause: Cause | None = None  # None if it is unknown
    evidence: tuple[Evidence, ...] = ()  # the lines that match the cause
    also: tuple[Evidence, ...] = ()  # lines that match other causes
    suspects: tuple[Suspect, ...] = ()  # ranks that the others waited for, or that the evidence names
    node_unclear: bool = False  # the evidence does not show which end of a connection failed
    followed: tuple[int, ...] = ()  # ranks that ended because of the first one
    open_ends: tuple[int, ...] = ()  # ranks without a recorded end
    last_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the run failed."""
        return self.first is not None or self.cause is not None

    def to_json(self) -> dict[str, Any]:
        """Return the content of failure.json."""
        first = self.first
        return {
            "schema": SCHEMA,
            "failed": self.failed,
            "ranks": self.ranks,
            "first": None if first is None else {**_short(first), "at": self.at},
            "cause": None if self.cause is None else self.cause.to_json(),
            "evidence": [_evidence(item) for item in self.evidence],
            "also": [_evidence(item) for item in self.also],
            "suspects": [{"rank": item.rank, "node": item.node, "why": item.why, "last_line": item.last_line} for item in self.suspects],
            "node_unclear": self.node_unclear,
            "followed": list(self.followed),
            "open_ends": list(self.open_ends),
            "last_lines": list(self.last_lines),
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Return the diagnosis as text."""
        return "\n".join(_text(self)) + "\n"


def after_failure(run_dir: Path, node_rank: int, started: float, node: str = "") -> Diagnosis:
    """Save this node's kernel log since `started` (seconds since the epoch), diagnose the run, and write failure.json."""
    node = node or socket.gethostname()
    kernel_log.collect(run_dir, node, node_rank, started)
    found = diagnose(run_dir, (node, started))
    with suppress(OSError):  # a full disk may be the cause; the caller prints the diagnosis
        files.write_files(run_dir, {FILE: json.dumps(found.to_json(), indent=2) + "\n"}, check=False)
    return found


def diagnose(run_dir: Path, since: tuple[str, float] = ("", 0.0)) -> Diagnosis:
    """Return the diagnosis of a run folder, without writing a file.

    Args:
        run_dir: The run folder.
        since: A node and the start of its part of the run by its clock. Older records of its ranks are of an earlier run.
    """
    node, began = since
    records = tuple(record for record in rank_log.read_records(run_dir) if record.node != node or record.started >= began)
    views = without_survived([read_rank(run_dir, record) for record in records if record.exit_code != 0])
    kernel = kernel_log.read_all(run_dir)
    launchers = _launcher_evidence(run_dir)
    found = Diagnosis(
        run_dir=str(run_dir),
        ranks=len(records),
        open_ends=tuple(record.rank for record in records if record.ended is None),
        notes=tuple(f"the kernel log of {log.node} could not be read: {log.problem}" for log in kernel if log.problem),
    )
    first = _first(views)
    if first is None:
        return _without_failed_rank(found, launchers)
    found = replace(
        found,
        first=first.record,
        at=first.failed_at,
        followed=tuple(view.record.rank for view in views if view is not first and view.record.failed),
        last_lines=tuple(line.text for line in first.tail[-_SHOWN_LINES:]),
    )
    found = _explain(found, first, views, launchers)
    return _with_kernel(found, first, views, kernel)


def _first(views: Sequence[RankView]) -> RankView | None:
    """Return the rank that failed first.

    Ranks with a cause, or that ended without one, precede ranks that were stopped after an error, because they may have handled that error.
    Those precede ranks that only lost a connection, whatever their times: the clocks of two nodes can differ by more than the time between
    these failures.
    """
    failed = [view for view in views if view.record.failed]
    by_itself = [view for view in failed if view.failed_by_itself or HANG in view.kinds]
    groups = (
        [view for view in by_itself if view.evidence or not view.record.ended_by_others],
        by_itself,
        [view for view in failed if CONSEQUENCE in view.kinds],
        failed,
    )
    return next((min(group, key=lambda view: view.failed_at) for group in groups if group), None)


def _explain(found: Diagnosis, first: RankView, views: Sequence[RankView], launchers: Sequence[Evidence]) -> Diagnosis:
    """Add the cause that the logs give."""
    others = [item for view in views for item in (*view.evidence, *view.noted)]
    line = first.main_evidence
    if line is None or line.cause.kind == OUTSIDE:
        chosen = _from_launcher(first, line, launchers) or line
        cause, evidence = (chosen.cause, (chosen,)) if chosen else (None, ())
        also = _others((*others, *launchers), {cause.name} if cause else set())
        return replace(found, cause=cause, evidence=evidence, also=also, notes=(*found.notes, *_stopped_note(first)))
    suspects = stopped_first(views) if line.cause.kind in (HANG, CONSEQUENCE) else named_in_message(line.text, views)
    by_rank = {view.record.rank: view for view in views}
    of_suspects = [by_rank[item.rank].own_cause for item in suspects if item.rank in by_rank]
    chosen = next((item for item in of_suspects if item), line)
    also = _others((*others, *launchers), {chosen.cause.name})
    found = replace(found, cause=chosen.cause, evidence=(chosen,), also=also, suspects=suspects)
    return _with_other_end(found, chosen, views) if chosen.cause.blames_other_end(chosen.text) else found


def _with_other_end(found: Diagnosis, line: Evidence, views: Sequence[RankView]) -> Diagnosis:
    """Find the faulty node if a rank reports that the other end of a connection did not answer. Its own node may be fine."""
    same = [item for view in views for item in view.evidence if item.cause is line.cause]
    own = next((item for item in same if not item.cause.blames_other_end(item.text)), None)
    if own is not None:
        return replace(found, evidence=(own,))
    if len({view.record.node for view in views}) < _LEAST_NODES:
        return found
    suspects = without_end(views)
    return replace(found, suspects=suspects, node_unclear=not suspects)


def _from_launcher(first: RankView, line: Evidence | None, launchers: Sequence[Evidence]) -> Evidence | None:
    """Return the launcher's line that says why a rank was stopped or killed from outside."""
    if line is None and first.record.ended_by_others:
        return next(iter(launchers), None)
    ended = line.cause.name if line else "stopped" if first.record.signal in ENDED_FROM_OUTSIDE else ""
    return next((item for item in launchers if ended in item.cause.explains), None)


def _with_kernel(found: Diagnosis, first: RankView, views: Sequence[RankView], logs: Sequence[kernel_log.KernelLog]) -> Diagnosis:
    """Use a kernel line as the cause if it explains the failure."""
    failure = kernel_evidence.Failure(first, first.failed_at, found.cause, found.evidence)
    chosen, others = kernel_evidence.explain(failure, views, logs)
    if chosen is None:
        return replace(found, also=_others((*found.also, *others), {found.cause.name} if found.cause else set()))
    cause = chosen.line.cause
    also = _others((*found.evidence, *found.also, *others), {cause.name})
    return _with_node(replace(found, cause=cause, evidence=(chosen.line,), also=also), chosen.line, chosen.killed, views)


def _with_node(found: Diagnosis, line: Evidence, killed: Sequence[RankView], views: Sequence[RankView]) -> Diagnosis:
    """Set the first rank or the suspects by the node whose kernel reported the cause."""
    if killed:
        first = killed[0]
        followed = tuple(view.record.rank for view in views if view is not first and view.record.failed)
        last = tuple(item.text for item in first.tail[-_SHOWN_LINES:])
        return replace(found, first=first.record, at=first.failed_at, followed=followed, suspects=(), last_lines=last)
    if found.first is None or found.first.node == line.node:
        return replace(found, suspects=())
    why = f"the kernel of {line.node} reported it"
    return replace(found, suspects=tuple(Suspect(view.record.rank, line.node, why) for view in views if view.record.node == line.node))


def _without_failed_rank(found: Diagnosis, launchers: Sequence[Evidence]) -> Diagnosis:
    """Diagnose a run without a failed rank: torchrun itself may have failed, or a node may be lost."""
    if launchers:
        return replace(found, cause=launchers[0].cause, evidence=(launchers[0],), also=_others(launchers, {launchers[0].cause.name}))
    if not found.ranks:
        return replace(found, notes=(*found.notes, "no rank has a record: no rank was started, or this is not a run folder"))
    return found


def _stopped_note(first: RankView) -> tuple[str, ...]:
    if first.record.ended_by_others:
        return ("every rank that failed was stopped by SIGTERM or SIGINT; the logs do not show the sender",)
    return ()


def _launcher_evidence(run_dir: Path) -> tuple[Evidence, ...]:
    """Return the lines of the launchers that name a cause, consequences last."""
    found: list[Evidence] = []
    for path in sorted(rank_log.launcher_path(run_dir, 0).parent.glob("launcher-*.log")):
        lines = rank_log.read_plain(path, limit_bytes=_LAUNCHER_BYTES)
        found += find_evidence(_latest_run(lines), f"logs/{path.name}")[0]
    return tuple(sorted(found, key=lambda item: item.cause.kind == CONSEQUENCE))


def _latest_run(lines: Sequence[Line]) -> list[Line]:
    """Return torchrun's own lines of the latest run in a folder, without lines of the ranks and of a diagnosis.

    The launcher ends each run with the line `run folder: …`, after the diagnosis.
    """
    ends = [index for index, line in enumerate(lines[:-1]) if line.text.startswith("run folder: ")]
    latest = lines[ends[-1] + 1 :] if ends else lines
    end = next((index for index, line in enumerate(latest) if _DIAGNOSIS_LINE.search(line.text)), len(latest))
    return [line for line in latest[:end] if not _RANK_LINE.match(line.text)]


def _others(lines: Iterable[Evidence], excluded: set[str]) -> tuple[Evidence, ...]:
    """Return the first line of each other cause."""
    others: dict[str, Evidence] = {}
    for line in lines:
        if line.cause.name not in excluded and line.cause.kind != OUTSIDE:
            others.setdefault(line.cause.name, line)
    return tuple(others.values())


def _short(record: RankRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("rank", "node", "local_rank", "pid", "started", "ended", "exit_code", "signal")}


def _evidence(line: Evidence) -> dict[str, Any]:
    return {"cause": line.cause.name, "place": line.location, "text": line.text, "time": line.time, "node": line.node, "rank": line.rank}


def _text(found: Diagnosis) -> list[str]:
    if not found.failed:
        return ["no rank failed", *_ends(found)] if found.ranks else list(found.notes)
    lines: list[str] = []
    if found.first is not None:
        first, after = found.first, ""
        if found.at is not None:
            after = f", {found.at - found.first.started:.1f} s after its start"
        lines.append(f"rank {first.rank} on {first.node} failed first{after}: it ended {describe_end(first)}")
    if found.cause is None:
        lines.append("cause: unknown; no line of the logs proves a known cause")
    else:
        lines.append(f"cause: {found.cause.title} ({found.cause.name})")
        lines += [f"  {item.location}: {item.text}" for item in found.evidence]
        lines.append(f"  {found.cause.means}")
        lines += [f"  fix: {step}" for step in found.cause.fix]
        lines.append(f"  source: {found.cause.source}")
    lines += [f"check: {_suspect(item)}" for item in found.suspects]
    if found.node_unclear:
        lines.append("check: both ends of the connection; the logs do not show which node failed")
    if found.cause is None and found.first is not None:
        lines += [f"the last lines of rank {found.first.rank}:", *(f"  | {line}" for line in found.last_lines)]
    lines += [f"also seen: {item.cause.title}: {item.location}: {item.text}" for item in found.also]
    return [*lines, *_ends(found), *(f"note: {note}" for note in found.notes)]


def _suspect(item: Suspect) -> str:
    where = f" on {item.node}" if item.node else ""
    last = f"; its last line: {item.last_line}" if item.last_line else ""
    return f"rank {item.rank}{where}: {item.why}{last}"


def _ends(found: Diagnosis) -> list[str]:
    lines = [f"ended because of it: rank {_numbers(found.followed)}"] if found.followed else []
    return [*lines, f"no end recorded: rank {_numbers(found.open_ends)}"] if found.open_ends else lines


def _numbers(ranks: Sequence[int]) -> str:
    """Return numbers with consecutive ones as ranges: 0-6, 8."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank, rank])
    return ", ".join(f"{first}-{last}" if first != last else f"{first}" for first, last in parts)
