"""Paths and errors of a cluster's state folder, which holds one folder per run."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.core.errors import PlanError, RunError

# ansible-runner writes every event and its command with the whole environment. Both may contain secrets, so they are deleted.
RUNNER_LEFTOVERS = ("job_events", "command")


def new_run_id(now: float) -> str:
    """Return the id of a run, which is also its folder's name: the time in UTC and four random hexadecimal digits."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{secrets.token_hex(2)}"


def runs_dir(state_dir: Path) -> Path:
    """Return the folder that holds one folder per run."""
    return state_dir / "runs"


def jobs_dir(state_dir: Path) -> Path:
    """Return the state folder of the runs that submit jobs. They change no cluster, so they have a lock of their own."""
    return state_dir / "jobs"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run, under `<state>/runs/<id>/`."""

    path: Path

    @property
    def run(self) -> str:
        """The id of the run."""
        return self.path.name

    @property
    def state_dir(self) -> Path:
        """The state folder that the run is in."""
        return self.path.parents[1]

    @property
    def journal(self) -> Path:
        """One JSON line per event."""
        return self.path / "journal.jsonl"

    @property
    def plan(self) -> Path:
        """The plan of the run."""
        return self.path / "plan.json"

    @property
    def inputs(self) -> Path:
        """What the run started from: whether its plan is complete, and the checksums of hosts.yaml and its variable files."""
        return self.path / "inputs.json"

    @property
    def report(self) -> Path:
        """The result of the run; missing if the run was killed."""
        return self.path / "report.json"

    @property
    def private_note(self) -> Path:
        """A file with the path of the folder for secrets and sockets; it exists as long as that folder."""
        return self.path / "private"

    @property
    def inventory(self) -> Path:
        """The copy of hosts.yaml and its variable files that Ansible reads during the run."""
        return self.path / "inventory"

    def artifacts(self, number: int) -> Path:
        """Return the folder for the output of the run's Ansible process `number`, counted from 1."""
        return self.path / "artifacts" / str(number)


@contextlib.contextmanager
def state_errors(kind: type[PlanError | RunError], path: Path) -> Iterator[None]:
    """Turn an OSError on the state folder (disk full, read-only, wrong owner) into an error with path, cause and fix.

    Args:
        kind: PlanError before the first host is contacted, RunError afterwards.
        path: The file or folder in use, in case the OSError does not name one.
    """
    try:
        yield
    except OSError as error:
        raise kind(
            f"cannot use {error.filename or path}: {error.strerror or error}",
            fix="free space there and make the folder writable, or set PRIMUS_STATE_DIR to a writable folder",
        ) from error
