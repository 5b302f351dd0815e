"""A run's result: one JSON line with units in its keys, and what it was measured on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def append_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Append a line to `results.jsonl`."""
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def surroundings() -> dict[str, Any]:
    """Return when, where and with which versions."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "git_commit": _git_commit(),
    }


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return median, 95th percentile and number of values."""
    if not values:
        return {"median": None, "p95": None, "n": 0}
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))],
        "n": len(ordered),
    }


def _git_commit() -> str | None:
    """Return the commit of these programs, or None where they are no checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
