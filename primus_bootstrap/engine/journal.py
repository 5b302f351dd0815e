"""The journal of a run: one JSON line per event, appended as the run proceeds, so a killed run leaves it as well."""

from __future__ import annotations

import json
import os
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

# The file is synced after these events. A crash of the machine may lose the lines since the last of them.
_SYNCED = (RunStarted, PhaseStarted, PhaseFinished, RunFinished)


class Journal:
    """The open journal of a run."""

    def __init__(self, path: Path) -> None:
        """Create the file, which must not exist."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: Event) -> None:
        """Append one event. Results that changed nothing are not written: `PhaseFinished` counts them."""
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
    """Yield the events of a journal; skip damaged lines."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                data = json.loads(line)
                event = event_from_json(data) if isinstance(data, dict) else None
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if event:
                yield event
