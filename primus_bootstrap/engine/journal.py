"""The journal: one JSON line an event, only ever appended to; what a killed run leaves, and what `report` reads then."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_all
from primus_bootstrap.engine.events import (
    Event,
    HostResult,
    PhaseFinished,
    PhaseStarted,
    RunFinished,
    RunStarted,
    event_from_json,
    event_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The disk is asked to keep what was written at these; between them a crash of the whole machine may cost some lines.
_SYNCED = (RunStarted, PhaseStarted, PhaseFinished, RunFinished)


def new_run_id(now: float) -> str:
    """Return a run's id, which is its folder's name: the time in UTC, and four characters that keep two apart."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run, under `<state>/runs/<id>/`."""

    path: Path

    @property
    def run(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """One JSON line an event."""
        return self.path / "journal.jsonl"

    @property
    def plan(self) -> Path:
        """The plan that the run followed."""
        return self.path / "plan.json"

    @property
    def report(self) -> Path:
        """What came of it; missing where the run was killed."""
        return self.path / "report.json"

    @property
    def private_note(self) -> Path:
        """Where the folder of secrets and sockets is, while there is one."""
        return self.path / "private"

    @property
    def inventory(self) -> Path:
        """The copy of hosts.yaml and its variable files that Ansible reads, while the run lasts."""
        return self.path / "inventory"

    def artifacts(self, number: int) -> Path:
        """Return the folder of what the run's Ansible process of that number printed; counted from 1."""
        return self.path / "artifacts" / str(number)


class Journal:
    """The open journal of a running run."""

    def __init__(self, path: Path) -> None:
        """Create the file; there must be none."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: Event) -> None:
        """Append one event; a result that changed nothing is left to the sums of its phase."""
        if isinstance(event, HostResult) and event.status in ("ok", "skipped"):
            return
        line = json.dumps(event_to_json(event), ensure_ascii=False, separators=(",", ":"))
        write_all(self._file, f"{line}\n".encode(errors="replace"))
        if isinstance(event, _SYNCED):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_journal(path: Path) -> Iterator[Event]:
    """Yield the events of a journal; a line that a kill tore is left out."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                data = json.loads(line)
                event = event_from_json(data) if isinstance(data, dict) else None
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if event:
                yield event
