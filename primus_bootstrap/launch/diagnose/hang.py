"""Which rank stopped first when others waited for it: those that report a time-out are the ones that were still there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose.causes import CONSEQUENCE, HANG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.diagnose.rank_evidence import RankView

# `[PG ID 2 PG GUID 9 Rank 4] … last enqueued NCCL work: 616, last completed NCCL work: 609`: torch ProcessGroupNCCL.cpp, since 2.4
_ENQUEUED = re.compile(r"\[PG (?:ID )?(?P<group>\S+)[^\]]*\].*last enqueued (?:NCCL )?work: (?P<number>\d+)")
# The trainer's watchdog names the phase; in these a rank waits for the others: docs/training.md
_PHASE = re.compile(r"no progress for [\d.]+ s: step (?P<step>\d+), phase (?P<phase>\w+)")
# What the trainer's watchdog reads of torch's flight recorder: `flight recorder: group 0 at 412 all_reduce, started; group 3 done to 96`
_RECORDER = re.compile(r"\bflight recorder: (?P<groups>group .*)")
_PLACE = re.compile(r"group (?P<group>\S+) (?:at (?P<at>\d+) \S+, (?P<state>scheduled|started)|done to (?P<done>\d+))(?=;|$)")
_IDLE, _SCHEDULED, _STARTED = range(3)
# `loss is not finite (nan) at step 12, first on rank 3`: all ranks agree before they stop
_NAMED = re.compile(r"\bfirst on rank (\d+)\b")
_WAITING_PHASES = frozenset({"forward_backward", "exchange", "optimizer", "startup", "checkpoint"})


@dataclass(frozen=True)
class Suspect:
    """A rank that stopped before the others, and what says so; `node` is empty where it never wrote a record."""

    rank: int
    node: str
    why: str
    last_line: str = ""


def stopped_first(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Return the ranks that the others waited for; none where all were in the same place.

    In this order: a rank whose own watchdog found it outside a collective; ranks that reported nothing while others did; the rank whose GPU
    had not begun the collective that the others' were in; the rank that had given the fewest operations to the GPU.
    """
    return _outside(views) or _silent(views) or _late(views) or _behind(views)


def named(text: str, views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Return the rank that a line itself names as the first one."""
    match = _NAMED.search(text)
    found = [view for view in views if match and view.record.rank == int(match[1])]
    return tuple(_suspect(view, "the program names it as the first") for view in found)


def _outside(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    found = [(view, match) for view in views for line in view.tail if (match := _PHASE.search(line.text))]
    outside = [(view, match) for view, match in found if match["phase"] not in _WAITING_PHASES]
    return tuple(_suspect(view, f"it was in the phase {match['phase']} of step {match['step']}") for view, match in outside)


def _silent(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    waited = {view.record.rank for view in views if view.kinds & {HANG, CONSEQUENCE}}
    silent = [view for view in views if view.record.rank not in waited and view.record.exit_code != 0]
    size = views[0].record.world_size if views else 0
    missing = sorted(set(range(size)) - {view.record.rank for view in views})
    found = [_suspect(view, "it reported no time-out, unlike the ranks that waited") for view in silent]
    return (*found, *(Suspect(rank, "", "it has no record in this run folder") for rank in missing))


def _late(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Compare how far the GPUs of each process group had come, by what the trainer's watchdog read in every rank.

    A rank that is late in one group because it waits in another one hands the wait on: who is late and waits nowhere stopped first.
    """
    groups: dict[str, dict[int, tuple[int, int]]] = {}
    for view in views:
        for line in view.tail:
            match = _RECORDER.search(line.text)
            for told in _PLACE.finditer(match["groups"]) if match else ():
                groups.setdefault(told["group"], {})[view.record.rank] = _place(told)
    late: dict[int, str] = {}
    waiting: set[int] = set()
    for group, places in groups.items():
        least, most = min(places.values()), max(places.values())
        if least[0] == most[0] and (least == most or most[1] != _STARTED):
            continue  # all in one place; or nobody waits there, and some host has only not come as far as the others
        waiting |= {rank for rank, place in places.items() if place > least and place[1] == _STARTED}
        for rank, place in places.items():
            if place == least:
                late.setdefault(rank, f"its GPU had not done collective {least[0]} of group {group}, for which others waited")
    by_rank = {view.record.rank: view for view in views}
    return tuple(_suspect(by_rank[rank], why) for rank, why in sorted(late.items()) if rank not in waiting)


def _place(match: re.Match[str]) -> tuple[int, int]:
    """Return the first collective that has not ended, and how far it is."""
    if match["done"]:
        return int(match["done"]) + 1, _IDLE
    return int(match["at"]), _STARTED if match["state"] == "started" else _SCHEDULED


def _behind(views: Sequence[RankView]) -> tuple[Suspect, ...]:
    """Compare within each process group: the numbers of two groups have nothing to do with each other."""
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
    spoken = [line.text for line in view.tail if line.text.strip()]
    return Suspect(view.record.rank, view.record.node, why, spoken[-1] if spoken else "")
