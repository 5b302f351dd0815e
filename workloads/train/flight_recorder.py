"""Report the state of this rank's collectives on the GPU, from torch's flight recorder.

GPUs run asynchronously: if one rank's GPU hangs, the hosts of all ranks wait at the same line, and stacks and phases do not show the cause.
The flight recorder does: on the other GPUs the collective has started; on the hanging GPU it is still scheduled.
Entries and states: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html, and torch's FlightRecorder.hpp.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_COMPLETED, _STARTED, _SCHEDULED = "completed", "started", "scheduled"
_PROGRESS = {_SCHEDULED: 0, _STARTED: 1, _COMPLETED: 2}
# The name since torch 2.9, and the older name that all releases read. Without either, old releases record nothing.
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_SIZE = "2000"
_TIMING = "TORCH_NCCL_ENABLE_TIMING"


def enable() -> None:
    """Enable the recording of collectives and their start times, unless the user has set it. Call it before creating the process group."""
    os.environ.setdefault(_TIMING, "1")
    if not any(name in os.environ for name in _SIZES):
        os.environ[_SIZES[0]] = _SIZE


def read(limit_s: float) -> str:
    """Return the positions of this rank's collectives, or why they are unknown; an empty string without torch or GPUs.

    The time limit applies if a lost GPU does not respond. If the call also blocks the interpreter, this function does not return.
    """
    torch: Any = sys.modules.get("torch")  # a backend may train without it
    if torch is None:
        return ""
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace", None)  # noqa: SLF001 - torch has no other name for it
    if dump is None or not torch.cuda.is_initialized():
        return ""
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(_read(dump)), name="flight recorder", daemon=True)
    reader.start()
    reader.join(limit_s)
    return found[0] if found else f"unknown: no answer within {limit_s:.0f} s"


def _read(dump: Any) -> str:
    try:
        data = pickle.loads(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))  # noqa: S301 - made in this process
        return describe(data) or f"unknown: it is empty ({_SIZES[1]}, since torch 2.9 {_SIZES[0]}, may be 0)"
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, EOFError, pickle.UnpicklingError) as problem:
        # The format can differ in other releases of torch. A failure here must not prevent the end of the rank.
        return f"unknown: {type(problem).__name__}"


def describe(dump: Mapping[str, Any]) -> str:
    """Return the oldest incomplete collective of each process group and its state on this GPU, as one line.

    Example: `group 0/default_pg at 412 all_reduce, started; group 3/mesh_data done to 96`. The diagnosis of a run compares these lines.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in dump.get("entries") or ():
        if not entry.get("is_p2p"):
            groups.setdefault(_name(entry), []).append(entry)
    return "; ".join(f"group {name} {_position(entries)}" for name, entries in sorted(groups.items()))


def _position(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the position of one group. Its collectives run in order, so those before a completed one are complete."""
    furthest: dict[int, tuple[int, str]] = {}
    for entry in entries:
        state = _PROGRESS.get(str(entry.get("state")), 0)
        if entry.get("time_discovered_started_ns"):
            state = max(state, _PROGRESS[_STARTED])
        number = int(entry.get("collective_seq_id", entry.get("seq_id", 0)))  # seq_id: torch 2.3 and older
        # The parts of a coalesced operation share their number, and some of them never change their state.
        furthest[number] = max(furthest.get(number, (0, "")), (state, str(entry.get("profiling_name", ""))))
    completed = max((number for number, (state, _) in furthest.items() if state == _PROGRESS[_COMPLETED]), default=-1)
    incomplete = [number for number in furthest if number > completed]
    if not incomplete:
        return f"done to {completed}"
    state, name = furthest[min(incomplete)]
    return f"at {min(incomplete)} {_word(name.rpartition(':')[2]) or 'unnamed'}, {_STARTED if state else _SCHEDULED}"


def _name(entry: Mapping[str, Any]) -> str:
    """Return the group's name, which is the same on all of its ranks."""
    given = entry.get("process_group") or (entry.get("pg_id", "unnamed"),)
    return "/".join(_word(part) for part in given if str(part))


def _word(text: Any) -> str:
    return "_".join(str(text).replace(",", " ").replace(";", " ").split())
