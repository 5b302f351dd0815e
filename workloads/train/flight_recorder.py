"""Where this rank's collectives on the GPU stand, from torch's flight recorder: a hang there shows in no stack and in no phase of the host.

A GPU works behind the host's back: when one rank's GPU hangs, the hosts of all ranks soon wait at the same line. What differs is whether
the collective that all wait for has begun on a GPU (it waits for others) or not (its GPU is still busy with something before it).
Entries and states: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html, and torch's FlightRecorder.hpp.
"""

from __future__ import annotations

import os
import pickle
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_COMPLETED, _STARTED, _SCHEDULED = "completed", "started", "scheduled"
_PROGRESS = {_SCHEDULED: 0, _STARTED: 1, _COMPLETED: 2}
# The newer name, from torch 2.9 on, and the one that all read; without either, old releases record nothing.
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_SIZE = "2000"
_TIMING = "TORCH_NCCL_ENABLE_TIMING"


def turn_on() -> None:
    """Have torch record collectives, and when each begins on the GPU; what the user has set stays. Before the process group is made."""
    os.environ.setdefault(_TIMING, "1")
    if not any(name in os.environ for name in _SIZES):
        os.environ[_SIZES[0]] = _SIZE


def look(limit_s: float) -> str:
    """Return where the collectives of this rank stand, or why that is unknown; empty where there is no GPU.

    A GPU that is gone may not answer: then this returns after `limit_s`. Where even the interpreter is held, it never does.
    """
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace", None)  # noqa: SLF001 - torch has no other name for it
    if dump is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(_ask(dump)), name="flight recorder", daemon=True)
    asking.start()
    asking.join(limit_s)
    return found[0] if found else f"unknown: no answer within {limit_s:.0f} s"


def _ask(dump: Any) -> str:
    try:
        data = pickle.loads(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))  # noqa: S301 - made in this process
        return describe(data) or f"unknown: it holds nothing ({_SIZES[1]}, from torch 2.9 on {_SIZES[0]}, may be 0)"
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, EOFError, pickle.UnpicklingError) as problem:
        # A last word must not end the one who says it; another release of torch may have another form.
        return f"unknown: {type(problem).__name__}"


def describe(dump: Mapping[str, Any]) -> str:
    """Return the oldest collective of each process group that has not ended, and whether it has begun on this GPU, as one line.

    Like `group 0/default_pg at 412 all_reduce, started; group 3/mesh_data done to 96`. The diagnosis of a run compares the ranks' lines.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in dump.get("entries") or ():
        if not entry.get("is_p2p"):
            groups.setdefault(_name(entry), []).append(entry)
    return "; ".join(f"group {name} {_place(entries)}" for name, entries in sorted(groups.items()))


def _place(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return how far one group has come: it runs its collectives in their order, so what stands before one that has ended has ended."""
    furthest: dict[int, tuple[int, str]] = {}
    for entry in entries:
        state = _PROGRESS.get(str(entry.get("state")), 0)
        if entry.get("time_discovered_started_ns"):
            state = max(state, _PROGRESS[_STARTED])
        number = int(entry.get("collective_seq_id", entry.get("seq_id", 0)))  # the second until torch 2.3
        # Parts of one coalesced operation share their number; some of them are never marked.
        furthest[number] = max(furthest.get(number, (0, "")), (state, str(entry.get("profiling_name", ""))))
    ended = max((number for number, (state, _) in furthest.items() if state == _PROGRESS[_COMPLETED]), default=-1)
    open_ones = [number for number in furthest if number > ended]
    if not open_ones:
        return f"done to {ended}"
    state, name = furthest[min(open_ones)]
    return f"at {min(open_ones)} {_word(name.rpartition(':')[2]) or 'unnamed'}, {_STARTED if state else _SCHEDULED}"


def _name(entry: Mapping[str, Any]) -> str:
    """Return what the group is called, which is the same on all of its ranks."""
    given = entry.get("process_group") or (entry.get("pg_id", "unnamed"),)
    return "/".join(_word(part) for part in given if str(part))


def _word(text: Any) -> str:
    return "_".join(str(text).replace(",", " ").replace(";", " ").split())
