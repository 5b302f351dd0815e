"""attempts/N/node-RRRRR.json: how one node's launcher of an attempt began and ended, and the claim that lets an attempt run only once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import create_atomic, write_atomic
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch.job_state import known

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = "primus.node-record/1"
_CLAIM = "claim"
_ERROR = "primus-cli: "
_TAIL_BYTES = 1 << 14


@dataclass(frozen=True)
class NodeRecord:
    """One node's launcher; `host` is the inventory's (or Slurm's, or Kubernetes') name, `node` the host's own.

    `ended` None: running, or gone silently. `address` and `pod` are of Kubernetes: how others reach it, and which pod it is in.
    """

    rank: int
    host: str
    node: str
    boot_id: str
    target_id: str
    started: float
    ended: float | None = None
    exit_code: int | None = None
    note: str = ""
    address: str = ""
    pod: str = ""
    schema: str = SCHEMA


def claim(folder: Path, record: NodeRecord) -> str:
    """Take a rank of an attempt; return who has it already, or an empty text. The first Slurm job that comes has the whole attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = _make_once(folder / _CLAIM, record.target_id)
    if owner != record.target_id:
        return f"Slurm job {owner}"
    text = _text(record)
    found = _make_once(_path(folder, record.rank), text)
    return "" if found == text else f"rank {record.rank} of an earlier start"


def owner(folder: Path) -> str:
    """Return the Slurm job that has an attempt; empty before one has begun."""
    try:
        return (folder / _CLAIM).read_text("utf-8", "replace")
    except OSError:
        return ""


def close(folder: Path, record: NodeRecord, *, ended: float, exit_code: int, note: str = "") -> None:
    """Record the end."""
    write_atomic(_path(folder, record.rank), _text(replace(record, ended=ended, exit_code=exit_code, note=note)), mode=0o600)


def read_all(folder: Path) -> dict[int, NodeRecord]:
    """Return the records of an attempt by rank."""
    return {record.rank: record for path in sorted(folder.glob("node-*.json")) for record in _read(path)}


def last_error(folder: Path) -> str:
    """Return the newest error that a launcher of an attempt printed itself, in one line; empty where there is none."""
    found = ""
    for path in sorted(folder.glob("node-*.log")):
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
            found = next((line[len(_ERROR) :] for line in reversed(lines) if line.startswith(_ERROR)), found)
    return found


def _read(path: Path) -> Iterator[NodeRecord]:
    with suppress(OSError, ValueError, TypeError):
        yield NodeRecord(**known(NodeRecord, parse_json(path.read_text("utf-8", "replace"))))


def _text(record: NodeRecord) -> str:
    return json.dumps(asdict(record)) + "\n"


def _path(folder: Path, rank: int) -> Path:
    return folder / f"node-{rank:05d}.json"


def _make_once(path: Path, text: str) -> str:
    """Make a file with its content at once unless it exists; return what it holds."""
    try:
        create_atomic(path, text, mode=0o600)
    except FileExistsError:
        return path.read_text("utf-8", "replace")
    return text
