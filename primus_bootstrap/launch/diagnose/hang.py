"""Find the ranks that the others waited for. The ranks that report a time-out are not the cause of a hang."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose.causes import CONSEQUENCE, HANG

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from primus_bootstrap.launch.diagnose.rank_evidence import RankView

# `[PG ID 2 PG GUID 9 Rank 4] … last enqueued NCCL work: 616, last completed NCCL work: 609`: torch ProcessGroupNCCL.cpp, since 2.4
_ENQUEUED = re.compile(r"\[PG (?:ID )?(?P<group>\S+)[^\]]*\].*last enqueued (?:NCCL )?work: (?P<number>\d+)")
# Line of the trainer's watchdog, docs/training.md
_PHASE = re.compile(r"no progress for [\d.]+ s: step (?P<step>\d+), phase (?P<phase>\w+)")
# The watchdog's line about torch's flight recorder: `flight recorder: group 0 at 412 all_reduce, started; group 3 done to 96`
_RECORDER = re.compile(r"\bflight recorder: (?P<groups>group .*)")
_POSITION = re.compile(r"group (?P<group>\S+) (?:at (?P<at>\d+) \S+, (?P<state>scheduled|started)|done to (?P<done>\d+))(?=;|$)")
_IDLE, _SCHEDULED, _STARTED = range(3)
# `loss is not finite (nan) at step 12, first on rank 3`: every rank logs this line
_NAMED = re.compile(r"\bfirst on rank (\d+)\b")
# Most ranks of a node: more than this many for each other one.
_MOST = 3
# In these phases a rank waits for the others.
_WAITING_PHASES = frozenset({"forward_backward", "exchange", "optimizer", "startup", "checkpoint"})


@dataclass(frozen=True)
class Suspect:
    """A rank that may be the cause, and the reason. `node` is empty if the rank has no record."""

    rank: int
    node: str
    why: str
    last_line: str = ""


def stopped_first(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Return the ranks that the others waited for, or nothing if all ranks were at the same position.

    The first of these criteria that finds a rank applies: its watchdog reported a phase outside collectives; it reported nothing while
    others did; its GPU had not started the collective of the others; its host had enqueued the fewest collectives.
    """
    return _outside_collectives(views) or _silent(views) or _gpu_behind(views) or _host_behind(views)


def named_in_message(text: str, views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Return the rank that the program's message names as the first one."""
    match = _NAMED.search(text)
    found = [view for view in views if match and view.record.rank == int(match[1])]
    return tuple(_suspect(view, "the program's message names it as the first") for view in found)


def without_end(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Return the ranks whose end is not recorded although others ended: their node may be lost."""
    lost = [view for view in views if view.record.ended is None]
    return (
        tuple(_suspect(view, "its end is not recorded, and a connection to it may have failed") for view in lost)
        if len(lost) < len(views)
        else ()
    )


def _outside_collectives(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    found = [(view, match) for view in views for line in view.tail if (match := _PHASE.search(line.text))]
    outside = [(view, match) for view, match in found if match["phase"] not in _WAITING_PHASES]
    return tuple(_suspect(view, f"it was in the phase {match['phase']} of step {match['step']}") for view, match in outside)


def _silent(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    waited = {view.record.rank for view in views if view.kinds & {HANG, CONSEQUENCE}}
    silent = [view for view in views if view.record.rank not in waited and view.record.exit_code != 0]
    silent = [view for view in silent if not _stopped_too_early(view, views, waited)]
    size = views[0].record.world_size if views else 0
    missing = sorted(set(range(size)) - {view.record.rank for view in views})
    found = [_suspect(view, "it reported no time-out, unlike the ranks that waited") for view in silent]
    return (*found, *(Suspect(rank, "", "it has no record in this run folder") for rank in missing))


def _stopped_too_early(view: RankView, views: Sequence[RankView], waited: Collection[int]) -> bool:
    """Return whether torchrun may have stopped a rank before it could report a time-out, because another rank of its node ended.

    Its silence proves something if most ranks of its node reported a time-out, or if there is no other node to blame.
    """
    on_node = [other for other in views if other.record.node == view.record.node]
    reported = sum(other.record.rank in waited for other in on_node)
    return view.record.ended_by_others and len(on_node) < len(views) and 0 < reported <= _MOST * (len(on_node) - reported)


def _gpu_behind(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Compare the positions of the GPUs in each process group, from the watchdog's flight recorder lines.

    A rank that is behind in one group may itself wait in another group. Only ranks that are behind and wait nowhere are suspects.
    """
    groups: dict[str, dict[int, tuple[int, int]]] = {}
    for view in views:
        for line in view.tail:
            recorder = _RECORDER.search(line.text)
            for match in _POSITION.finditer(recorder["groups"]) if recorder else ():
                groups.setdefault(match["group"], {})[view.record.rank] = _position(match)
    behind: dict[int, str] = {}
    waiting: set[int] = set()
    for group, positions in groups.items():
        least, most = min(positions.values()), max(positions.values())
        if least[0] == most[0] and (least == most or most[1] != _STARTED):
            continue  # all at one position, or no GPU waits in this group
        waiting |= {rank for rank, position in positions.items() if position > least and position[1] == _STARTED}
        for rank, position in positions.items():
            if position == least:
                behind.setdefault(rank, f"its GPU had not completed collective {least[0]} of group {group}, for which others waited")
    by_rank = {view.record.rank: view for view in views}
    return tuple(_suspect(by_rank[rank], why) for rank, why in sorted(behind.items()) if rank not in waiting)


def _position(match: re.Match[str]) -> tuple[int, int]:
    """Return the first incomplete collective and its state."""
    if match["done"]:
        return int(match["done"]) + 1, _IDLE
    return int(match["at"]), _STARTED if match["state"] == "started" else _SCHEDULED


def _host_behind(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Compare the number of enqueued collectives within each process group."""
    groups: dict[str, dict[int, int]] = {}
    by_rank = {view.record.rank: view for view in views}
    for view in views:
        for line in view.tail:
            match = _ENQUEUED.search(line.text)
            if match:
                groups.setdefault(match["group"], {})[view.record.rank] = int(match["number"])
    for numbers in groups.values():
        least, most = min(numbers.values()), max(numbers.values())
        if least < most:
            why = f"it had enqueued {least} collectives, others up to {most}"
            return tuple(_suspect(by_rank[rank], why) for rank, number in sorted(numbers.items()) if number == least)
    return ()


def _suspect(view: RankView, why: str) -> Suspect:
    lines = [line.text for line in view.tail if line.text.strip()]
    return Suspect(view.record.rank, view.record.node, why, lines[-1] if lines else "")
