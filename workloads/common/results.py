"""Write `results.jsonl`: the record `primus.result/1` of a measured series, with host, versions and time."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import statistics
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = "primus.result/1"
Sizes = dict[str, int | float | str]
LARGEST_SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Result:
    """One measured series."""

    benchmark: str
    metric: str
    value: float | None  # the median of `samples`, or None if there is an `error`
    unit: str
    better: Literal["higher", "lower"]
    sizes: Sizes
    host: str
    device: str  # the GPU's index on its host; "" for the host or all ranks together
    model: str
    serial: str  # the device's serial number, or ""
    ranks: int
    repeats: int
    samples: list[float]
    p95: float | None
    correct: bool | None  # whether the computed result was correct; None if it was not checked
    error: str
    versions: dict[str, str | None]
    time: str
    seconds: float
    options: dict[str, Any]
    schema: str = SCHEMA


def append_result(folder: Path, result: Mapping[str, Any] | Result) -> None:
    """Append a line to `results.jsonl`. Ranks on several hosts may append at the same time."""
    line = json.dumps(asdict(result) if isinstance(result, Result) else result) + "\n"
    descriptor = os.open(folder / "results.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        # On NFS, O_APPEND alone can overwrite lines of another host (open(2)). Without locks, only the lines of one host are safe.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        rest = line.encode()
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def host_name() -> str:
    """Return this host's name: from the launcher, or from the system."""
    return os.environ.get("PRIMUS_NODE") or platform.node()


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Return the versions that can affect the speed; None for a version that was not found."""
    torch = _torch()
    return {
        "python": platform.python_version(),
        "torch": _torch_version() if torch else None,
        "cuda": torch.version.cuda if torch else None,
        "rocm": torch.version.hip if torch else None,
        "driver": _driver(),
        "git_commit": _git_commit(),
    }


def _torch() -> Any:
    """Return torch, or None if this Python has none, as that of a backend that uses another library."""
    try:
        import torch  # noqa: PLC0415 - programs without torch write results as well
    except ImportError:
        return None
    return torch


def _torch_version() -> str:
    from workloads.common.torch_release import version  # noqa: PLC0415 - it imports torch, which some programs do not have

    return version()


def surroundings() -> dict[str, Any]:
    """Return time, host, world size and versions of a training run."""
    return {"finished": now(), "host": platform.node(), "world_size": int(os.environ.get("WORLD_SIZE", "1")), **versions()}


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


def thinned(samples: Sequence[float]) -> list[float]:
    """Return at most `LARGEST_SAMPLES` of the samples, evenly spread and in order."""
    if len(samples) <= LARGEST_SAMPLES:
        return list(samples)
    return [samples[index * len(samples) // LARGEST_SAMPLES] for index in range(LARGEST_SAMPLES)]


def _driver() -> str | None:
    """Return the version of the loaded GPU driver from sysfs, or None, for example if it is built into the kernel."""
    for module in ("nvidia", "amdgpu"):
        with suppress(OSError):
            return Path(f"/sys/module/{module}/version").read_text("utf-8").strip()
    return None


def _git_commit() -> str | None:
    """Return the commit of these programs, or None outside a git checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=10,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
