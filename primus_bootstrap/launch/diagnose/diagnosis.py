"""Why a run failed: the rank that failed first by time, the cause that its lines or the kernel's stand for, and what to do.

Reads a run folder: exit records, logs of ranks and of torchrun, kernel logs. A cause is named only where data/causes.yml has a line for it;
else it is unknown, and the last lines of the first rank that failed are what is shown.
"""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.detect.render import files
from primus_bootstrap.launch.diagnose import kernel_log
from primus_bootstrap.launch.diagnose.causes import CONSEQUENCE, HANG, KILLED, OUTSIDE, Cause, match_kernel
from primus_bootstrap.launch.diagnose.hang import Suspect, named, stopped_first
from primus_bootstrap.launch.diagnose.rank_evidence import Evidence, RankView, describe_end, find_evidence, look
from primus_bootstrap.launch.ranks import rank_log
from primus_bootstrap.launch.ranks.rank_log import SIGKILL, Line, RankRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SCHEMA = "primus.failure/1"
FILE = "failure.json"
_LAUNCHER_BYTES = 1 << 19
_SHOWN_LINES = 20
_SHOWN_LINE, _OWN_FIRST_LINE = re.compile(r"\[[^\]/]+/\d+\] "), re.compile(r"^rank \d+ on \S+ failed first|^cause: ")
# A driver needs some seconds to write down what a program notices at once, and a killed process a while to be reaped.
_KERNEL_LATER_S, _KILLED_LATER_S = 30.0, 60.0


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a failure.

    `first` is the record of the rank that failed first, None where none failed; `at` its time in seconds since the epoch. `cause` is None
    where it is unknown. `also` holds lines of other causes. `followed` ranks ended because of the first one; `open_ends` have no end.
    """

    run_dir: str
    ranks: int
    first: RankRecord | None = None
    at: float | None = None
    cause: Cause | None = None
    evidence: tuple[Evidence, ...] = ()
    also: tuple[Evidence, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    followed: tuple[int, ...] = ()
    open_ends: tuple[int, ...] = ()
    last_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Say whether anything failed."""
        return self.first is not None or self.cause is not None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, the content of failure.json."""
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
            "followed": list(self.followed),
            "open_ends": list(self.open_ends),
            "last_lines": list(self.last_lines),
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Return it for people."""
        return "\n".join(_text(self)) + "\n"


def after_failure(run_dir: Path, node_rank: int, started: float, node: str = "") -> Diagnosis:
    """Keep this node's kernel log since `started` (seconds since the epoch), diagnose, and write failure.json."""
    node = node or socket.gethostname()
    kernel_log.collect(run_dir, node, node_rank, started)
    found = diagnose(run_dir, (node, started))
    with suppress(OSError):  # a full disk may be the very cause; it is printed all the same
        files.bring_about(run_dir, {FILE: json.dumps(found.to_json(), indent=2) + "\n"}, check=False)
    return found


def diagnose(run_dir: Path, since: tuple[str, float] = ("", 0.0)) -> Diagnosis:
    """Return what a run folder says; nothing is written.

    Args:
        run_dir: The run folder.
        since: A node, and when its part of the run began by its own clock: what its ranks left before is of an earlier use of the folder.
    """
    node, began = since
    records = tuple(record for record in rank_log.read_records(run_dir) if record.node != node or record.started >= began)
    views = tuple(look(run_dir, record) for record in records if record.exit_code != 0)
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
    return _with_kernel(found, views, kernel)


def _first(views: Sequence[RankView]) -> RankView | None:
    """Return the rank that failed first by time.

    One that failed by itself, or that waited too long for another, comes before those that only lost their connection: clocks of two nodes
    may differ by more than it takes to notice that.
    """
    failed = [view for view in views if view.record.failed]
    groups = (
        [view for view in failed if view.failed_by_itself or HANG in view.kinds],
        [view for view in failed if CONSEQUENCE in view.kinds],
        failed,
    )
    return next((min(group, key=lambda view: view.failed_at) for group in groups if group), None)


def _explain(found: Diagnosis, first: RankView, views: Sequence[RankView], launchers: Sequence[Evidence]) -> Diagnosis:
    """Name the cause that the logs give."""
    line = first.first
    if line is None:
        outside = launchers[:1] if first.record.ended_by_others else ()
        return replace(found, cause=outside[0].cause if outside else None, evidence=tuple(outside), notes=(*found.notes, *_unknown(first)))
    suspects = stopped_first(views) if line.cause.kind in (HANG, CONSEQUENCE) else named(line.text, views)
    by_rank = {view.record.rank: view for view in views}
    behind = [by_rank[item.rank].own for item in suspects if item.rank in by_rank]
    reason = next((item for item in behind if item), None)
    chosen = reason or line
    others = [item for view in views for item in view.evidence]
    return replace(
        found,
        cause=chosen.cause,
        evidence=(chosen,),
        also=_others((*others, *launchers), {chosen.cause.name}),
        suspects=suspects,
    )


def _with_kernel(found: Diagnosis, views: Sequence[RankView], logs: Sequence[kernel_log.KernelLog]) -> Diagnosis:
    """Let the kernel's word win: it saw the hardware fail, or killed the process."""
    before = (found.at or 0.0) + _KERNEL_LATER_S
    for log in logs:
        for number, (at, text) in enumerate(log.lines, 1):
            match = match_kernel(text)
            if match is None or at > before:
                continue
            cause, groups = match
            victims = _victims(cause, groups.groupdict().get("pid"), log.node, at, views)
            if cause.needs == KILLED and not victims:
                continue
            line = Evidence(cause, f"kernel log of {log.node}", number, text.strip(), at, log.node)
            also = _others((*found.evidence, *found.also), {cause.name})
            return _blame(replace(found, cause=cause, evidence=(line,), also=also), line, victims, views)
    return found


def _victims(cause: Cause, pid: str | None, node: str, at: float, views: Sequence[RankView]) -> tuple[RankView, ...]:
    """Return the ranks of a node that the kernel killed: it names their process, or they were killed at that time."""
    if cause.needs != KILLED:
        return ()
    here = [view for view in views if view.record.node == node]
    named = tuple(view for view in here if pid is not None and view.record.pid == int(pid))
    killed = (view for view in here if view.record.signal == SIGKILL or any(item.cause is cause for item in view.evidence))
    return named or tuple(view for view in killed if -_KERNEL_LATER_S <= (view.record.ended or at) - at <= _KILLED_LATER_S)


def _blame(found: Diagnosis, line: Evidence, victims: Sequence[RankView], views: Sequence[RankView]) -> Diagnosis:
    """Point at the ranks of the node whose kernel spoke, where another node's rank was the first to notice."""
    if victims:
        first = victims[0]
        followed = tuple(view.record.rank for view in views if view is not first and view.record.failed)
        last = tuple(item.text for item in first.tail[-_SHOWN_LINES:])
        return replace(found, first=first.record, at=first.failed_at, followed=followed, suspects=(), last_lines=last)
    if found.first is None or found.first.node == line.node:
        return replace(found, suspects=())
    why = f"the kernel of {line.node} reported it"
    return replace(found, suspects=tuple(Suspect(view.record.rank, line.node, why) for view in views if view.record.node == line.node))


def _without_failed_rank(found: Diagnosis, launchers: Sequence[Evidence]) -> Diagnosis:
    """Judge a run in which no rank failed: torchrun itself may have, or a node went away."""
    if launchers:
        return replace(found, cause=launchers[0].cause, evidence=(launchers[0],), also=_others(launchers, {launchers[0].cause.name}))
    if not found.ranks:
        return replace(found, notes=(*found.notes, "no rank has left a record: nothing was started, or this is not the run's folder"))
    return found


def _unknown(first: RankView) -> tuple[str, ...]:
    record = first.record
    if record.ended_by_others:
        return ("every rank that failed was asked to stop (SIGTERM or SIGINT) and ended by that; the logs do not say by whom",)
    return ()


def _launcher_evidence(run_dir: Path) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    for path in sorted(rank_log.launcher_path(run_dir, 0).parent.glob("launcher-*.log")):
        lines = rank_log.read_plain(path, limit_bytes=_LAUNCHER_BYTES)
        found += find_evidence(_newest_use(lines), f"logs/{path.name}")
    return tuple(sorted(found, key=lambda item: item.cause.kind == CONSEQUENCE))


def _newest_use(lines: Sequence[Line]) -> list[Line]:
    """Return what torchrun itself said in the newest use of a run folder, without the ranks' lines and ours between.

    The launcher's last line of each use names the run folder; a diagnosis is printed before that.
    """
    ends = [index for index, line in enumerate(lines[:-1]) if line.text.startswith("run folder: ")]
    newest = lines[ends[-1] + 1 :] if ends else lines
    own = next((index for index, line in enumerate(newest) if _OWN_FIRST_LINE.search(line.text)), len(newest))
    return [line for line in newest[:own] if not _SHOWN_LINE.match(line.text)]


def _others(lines: Iterable[Evidence], known: set[str]) -> tuple[Evidence, ...]:
    """Return one line of each further cause, for the reader to judge."""
    kept: dict[str, Evidence] = {}
    for line in lines:
        if line.cause.name not in known and line.cause.kind != OUTSIDE:
            kept.setdefault(line.cause.name, line)
    return tuple(kept.values())


def _short(record: RankRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("rank", "node", "local_rank", "pid", "started", "ended", "exit_code", "signal")}


def _evidence(line: Evidence) -> dict[str, Any]:
    return {"cause": line.cause.name, "place": line.place, "text": line.text, "time": line.time, "node": line.node, "rank": line.rank}


def _text(found: Diagnosis) -> list[str]:
    if not found.failed:
        return ["nothing failed", *_ends(found)] if found.ranks else list(found.notes)
    lines: list[str] = []
    if found.first is not None:
        first, after = found.first, ""
        if found.at is not None:
            after = f", {found.at - found.first.started:.1f} s after its start"
        lines.append(f"rank {first.rank} on {first.node} failed first{after}: it ended {describe_end(first)}")
    if found.cause is None:
        lines.append("cause: unknown; no known pattern matches")
    else:
        lines.append(f"cause: {found.cause.title} ({found.cause.name})")
        lines += [f"  {item.place}: {item.text}" for item in found.evidence]
        lines.append(f"  {found.cause.means}")
        lines += [f"  fix: {step}" for step in found.cause.fix]
        lines.append(f"  source: {found.cause.source}")
    lines += [f"look at: {_suspect(item)}" for item in found.suspects]
    if found.cause is None and found.first is not None:
        lines += [f"the last lines of rank {found.first.rank}:", *(f"  | {line}" for line in found.last_lines)]
    lines += [f"also seen: {item.cause.title}: {item.place}: {item.text}" for item in found.also]
    return [*lines, *_ends(found), *(f"note: {note}" for note in found.notes)]


def _suspect(item: Suspect) -> str:
    where = f" on {item.node}" if item.node else ""
    last = f"; its last line: {item.last_line}" if item.last_line else ""
    return f"rank {item.rank}{where}: {item.why}{last}"


def _ends(found: Diagnosis) -> list[str]:
    lines = [f"ended because of it: rank {_numbers(found.followed)}"] if found.followed else []
    return [*lines, f"no end recorded: rank {_numbers(found.open_ends)}"] if found.open_ends else lines


def _numbers(ranks: Sequence[int]) -> str:
    """Return numbers with runs drawn together: 0-6, 8."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank, rank])
    return ", ".join(f"{first}-{last}" if first != last else f"{first}" for first, last in parts)
