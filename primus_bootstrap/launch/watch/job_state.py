"""state.json: the state of a job. The watcher writes it; nodes read it as their lease."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.structured import InvalidDataError, read, readable
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch.job_spec import Host

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "primus.job-state/1"
PENDING, STARTING, RUNNING, STOPPING, ENDED, WAITING = "pending", "starting", "running", "stopping", "ended", "waiting"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
TERMINAL = (DONE, FAILED, CANCELLED)
_KEPT_ATTEMPTS = 50
_LARGEST_BYTES = 64 << 20  # thousands of hosts, in fifty attempts


@readable
@dataclass(frozen=True)
class Excluded:
    """A host that new attempts avoid.

    `since` is in seconds since the epoch. With `hardware` the host returns only after a newer health record that passes.
    """

    host: str
    since: float
    cause: str
    reason: str
    hardware: bool = False


@readable
@dataclass(frozen=True)
class Attempt:
    """One start of the job. `steps_offset` is the size of steps.jsonl before it, in bytes. Times are in seconds since the epoch."""

    attempt: int
    hosts: tuple[str, ...] = ()
    target_id: str = ""
    started: float = 0.0
    steps_offset: int = 0
    first_step: int | None = None
    first_step_at: float | None = None
    last_step: int | None = None
    ended: float | None = None
    exit_code: int | None = None
    cause: str = ""
    reason: str = ""


@readable
@dataclass(frozen=True)
class State:
    """The state of a job. Times are in seconds since the epoch."""

    job: str
    phase: str = PENDING
    reason: str = ""
    fix: str = ""
    attempt: int = 0
    revoked: bool = False  # the lease of the attempt is revoked: its nodes end their launchers
    revoked_at: float = 0.0  # when the revocation was written
    updated: float = 0.0
    since: float = 0.0  # start of the phase
    not_before: float = 0.0  # earliest start of the next attempt
    restarts: int = 0
    restarts_without_progress: int = 0  # restarts since the last new step
    stops: int = 0  # attempts since the last new step that were stopped from outside; they do not count against the retry budget
    best_step: int | None = None  # the highest step of all attempts
    step: int | None = None
    step_at: float | None = None  # when the watcher saw that step
    checkpoint: int | None = None
    hosts: tuple[Host, ...] = ()
    target_id: str = ""  # the target's own id of the attempt
    spares: bool = False  # a scheduler may use spare nodes for the newest attempt
    stopping: str = ""  # why an attempt is being stopped: cancel, failed, lost, no_progress or not_started
    deadline: float = 0.0  # when the lease of a stopping attempt is revoked at the latest
    cancel: bool = False  # the user requested cancellation
    verdict: str = ""  # the target's own reason for the end of the attempt
    failing_since: float = 0.0  # when the first launcher of the attempt ended
    unknown: tuple[tuple[str, float], ...] = ()  # hosts that do not answer, and since when
    lost: tuple[str, ...] = ()  # hosts lost in the newest attempt
    unclear: tuple[str, ...] = ()  # hosts that neither ended nor count as lost
    absent: tuple[str, ...] = ()  # hosts on which the attempt never started
    placed: tuple[tuple[str, float], ...] = ()  # hosts that the scheduler chose and that have not started yet, and since when
    excluded: tuple[Excluded, ...] = ()
    attempts: tuple[Attempt, ...] = ()  # all attempts, oldest first; the file has the newest 50
    watcher: str = ""

    @property
    def current(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[-1]

    def to_json(self) -> dict[str, Any]:
        """Return the content of state.json."""
        data = asdict(self)
        data.update(unknown=dict(self.unknown), placed=dict(self.placed))
        return {"schema": SCHEMA, **data, "attempts": data["attempts"][-_KEPT_ATTEMPTS:]}


def from_json(data: Any, *, origin: str = "") -> State:
    """Return the state that `to_json` wrote. Unknown keys are skipped: nodes with an older release must be able to read their lease.

    Raises:
        InvalidDataError: The data are something else.
    """
    if isinstance(data, dict):
        pairs = {name: sorted(data[name].items()) for name in ("unknown", "placed") if isinstance(data.get(name), dict)}
        data = {**data, **pairs}
    return read(State, data, origin=origin, schema=SCHEMA, ignore_unknown=True)


def load(path: Path) -> State | None:
    """Read state.json; return None if there is none yet.

    Raises:
        PlanError: The file cannot be read, or is not a state.
    """
    try:
        text = safe_files.read_regular(path, max_bytes=_LARGEST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error}", fix="repair the shared storage; systemd restarts the watcher") from error
    try:
        return from_json(parse_json(text), origin=str(path))
    except (ValueError, InvalidDataError) as error:
        what = error.what if isinstance(error, InvalidDataError) else f"{path}: {error}"
        fix = "use the release of primus-watch that wrote it, restore the file, or submit the job again with its checkpoints"
        raise PlanError(f"not the state of a job: {what}", fix=fix) from error


def save(path: Path, state: State) -> None:
    """Replace state.json."""
    write_atomic(path, json.dumps(state.to_json(), indent=1) + "\n", mode=0o600)
