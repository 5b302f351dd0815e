"""attempts/N/node-RRRRR.json: start and end of a node's launcher, and the claim that prevents a second run of an attempt."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import create_atomic, write_atomic
from primus_bootstrap.core.structured import InvalidDataError, read, readable
from primus_bootstrap.launch.untrusted import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = "primus.node-record/1"
_CLAIM = "claim"
_ERROR = "primus-cli: "
_FIX = "  fix: "
_TAIL_BYTES = 1 << 14


@readable
@dataclass(frozen=True)
class NodeRecord:
    """The launcher of one node. Times are in seconds since the epoch."""

    rank: int
    host: str  # its name in the inventory, in Slurm or in Kubernetes
    node: str  # its own hostname
    boot_id: str  # identifies this boot of the machine
    target_id: str  # the target's id of the attempt
    started: float
    ended: float | None = None  # end of the launcher; None: it runs, or was killed
    exit_code: int | None = None  # exit code of the launcher
    note: str = ""  # why the program `attempt` ended the launcher
    address: str = ""  # address of a pod
    pod: str = ""  # name of the pod
    schema: str = SCHEMA


def claim(folder: Path, record: NodeRecord) -> str:
    """Claim a rank of an attempt for this launcher. The first Slurm job that claims a rank owns the whole attempt.

    Returns:
        The earlier claimant, or an empty text on success.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = _create_once(folder / _CLAIM, record.target_id)
    if job != record.target_id:
        return f"Slurm job {job}"
    text = _text(record)
    found = _create_once(_path(folder, record.rank), text)
    return "" if found == text else f"rank {record.rank} of an earlier start"


def owner(folder: Path) -> str:
    """Return the Slurm job that owns an attempt; empty before one has started."""
    try:
        return (folder / _CLAIM).read_text("utf-8", "replace")
    except OSError:
        return ""


def close(folder: Path, record: NodeRecord, *, ended: float, exit_code: int, note: str = "") -> None:
    """Record the end of a launcher."""
    write_atomic(_path(folder, record.rank), _text(replace(record, ended=ended, exit_code=exit_code, note=note)), mode=0o600)


def read_all(folder: Path) -> dict[int, NodeRecord]:
    """Return the records of an attempt by rank."""
    return {record.rank: record for path in sorted(folder.glob("node-*.json")) for record in _read(path)}


@dataclass(frozen=True)
class LauncherError:
    """The error that a launcher printed itself; empty texts if there is none."""

    what: str = ""
    fix: str = ""


def last_error(folder: Path) -> LauncherError:
    """Return the last error that a launcher of the attempt printed itself."""
    found = LauncherError()
    for path in sorted(folder.glob("node-*.log")):
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
            found = next((_parse(lines[number:]) for number in reversed(range(len(lines))) if lines[number].startswith(_ERROR)), found)
    return found


def _parse(lines: list[str]) -> LauncherError:
    """Parse the text of an error, whose fix is on the next line (`PrimusError.__str__`)."""
    fix = lines[1] if len(lines) > 1 and lines[1].startswith(_FIX) else _FIX
    return LauncherError(lines[0][len(_ERROR) :], fix[len(_FIX) :])


def _read(path: Path) -> Iterator[NodeRecord]:
    with suppress(OSError, ValueError, InvalidDataError):
        yield read(NodeRecord, parse_json(path.read_text("utf-8", "replace")), ignore_unknown=True)


def _text(record: NodeRecord) -> str:
    return json.dumps(asdict(record)) + "\n"


def _path(folder: Path, rank: int) -> Path:
    return folder / f"node-{rank:05d}.json"


def _create_once(path: Path, text: str) -> str:
    """Create a file unless it exists; return its content."""
    try:
        create_atomic(path, text, mode=0o600)
    except FileExistsError:
        return path.read_text("utf-8", "replace")
    return text
