"""Read the progress of a job from the trainer's files: the newest step and the newest complete checkpoint."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checkpoints import newest_complete, step_of
from primus_bootstrap.launch.untrusted import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_TAIL_BYTES = 1 << 16
_GAUGE = re.compile(r"^primus_train_step(?:\{.*\})? (\d+)(?:\.0)?$", re.MULTILINE)


@dataclass(frozen=True)
class Progress:
    """The first and the newest step of an attempt, None before the first one; and the step of the newest complete checkpoint.

    The first one is known once steps.jsonl shows it; until then, the newest one may come from metrics.prom.
    """

    first: int | None = None
    step: int | None = None
    checkpoint: int | None = None


def steps_size(run: Path) -> int:
    """Return the size of steps.jsonl in bytes; the next attempt appends to it."""
    try:
        return (run / "steps.jsonl").stat().st_size
    except OSError:
        return 0


def read_progress(run: Path, checkpoints: Path, *, steps_offset: int) -> Progress:
    """Return the progress since steps.jsonl had `steps_offset` bytes.

    metrics.prom counts as well: it is replaced at each step, so it is up to date even if the storage shows appended data late.
    """
    first, newest = _steps(run / "steps.jsonl", steps_offset)
    gauge = _gauge(run / "metrics.prom")
    if gauge is not None:
        newest = gauge if newest is None else max(gauge, newest)
    return Progress(first, newest, step_of(newest_complete(checkpoints)))


def _steps(path: Path, offset: int) -> tuple[int | None, int | None]:
    """Return the first and the last step after an offset; incomplete lines are skipped."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(min(offset, size))
            head = file.read(_TAIL_BYTES)
            start = max(offset, size - _TAIL_BYTES)
            file.seek(start)
            tail = head if start == offset else file.read(_TAIL_BYTES)
    except OSError:
        return None, None
    first = next(_complete_steps(head.split(b"\n")), None)
    last = next(_complete_steps(reversed(tail.split(b"\n"))), None)
    return first, last


def _complete_steps(lines: Iterable[bytes]) -> Iterator[int]:
    for line in lines:
        try:
            yield int(parse_json(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue


def _gauge(path: Path) -> int | None:
    try:
        match = _GAUGE.search(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return int(match[1]) if match else None
