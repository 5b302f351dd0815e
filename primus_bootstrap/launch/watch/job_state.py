"""state.json: where a job stands. The watcher alone writes it, at once and as a whole; nodes read it as their lease."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch.job_spec import Host

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "primus.job-state/1"
PENDING, STARTING, RUNNING, STOPPING, ENDED, WAITING = "pending", "starting", "running", "stopping", "ended", "waiting"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
LIVE = (STARTING, RUNNING, STOPPING)
TERMINAL = (DONE, FAILED, CANCELLED)
_KEPT_ATTEMPTS = 50
_LARGEST_BYTES = 64 << 20  # thousands of hosts, in fifty attempts


@dataclass(frozen=True)
class Excluded:
    """A host that attempts keep off: since when (seconds since the epoch) and why. `hardware`: only a newer health record lets it back."""

    host: str
    since: float
    cause: str
    reason: str
    hardware: bool = False


@dataclass(frozen=True)
class Attempt:
    """One start of the job. `steps_offset` is the size of steps.jsonl before it, in bytes; times are seconds since the epoch."""

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


@dataclass(frozen=True)
class State:
    """Where a job stands; times are seconds since the epoch.

    `revoked` takes the lease of the attempt away: its nodes end what they run. `stopping` is why an attempt is being stopped (cancel,
    failed, lost, no_progress), `deadline` when its lease is taken away at the latest. `verdict` is the target's own word on its end.
    `stops` counts attempts that were stopped from outside since the last progress, and cost no restart.
    `unknown` says since when a node has not answered, `placed` since when one that the platform has chosen has yet to start; `lost` who
    was lost in the newest attempt, `unclear` who neither ended nor was called lost, `absent` where it never started. `watcher` names the
    one that leads. `step_at` is when the newest step was seen, not when it was made. `spares` lets a target that takes the hosts itself
    take spare ones for the newest attempt.
    """

    job: str
    phase: str = PENDING
    reason: str = ""
    fix: str = ""
    attempt: int = 0
    revoked: bool = False
    revoked_at: float = 0.0
    updated: float = 0.0
    since: float = 0.0
    not_before: float = 0.0
    restarts: int = 0
    restarts_without_progress: int = 0
    stops: int = 0
    best_step: int | None = None
    step: int | None = None
    step_at: float | None = None
    checkpoint: int | None = None
    hosts: tuple[Host, ...] = ()
    target_id: str = ""
    spares: bool = False
    stopping: str = ""
    deadline: float = 0.0
    cancel: bool = False
    verdict: str = ""
    failing_since: float = 0.0
    unknown: tuple[tuple[str, float], ...] = ()
    lost: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    placed: tuple[tuple[str, float], ...] = ()
    excluded: tuple[Excluded, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    watcher: str = ""

    @property
    def current(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[-1]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        data = asdict(self)
        data.update(unknown=dict(self.unknown), placed=dict(self.placed))
        return {"schema": SCHEMA, **data, "attempts": data["attempts"][-_KEPT_ATTEMPTS:]}


def known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this version knows: nodes that still run an older one must be able to read their lease."""
    return {name: value for name, value in data.items() if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


def from_json(data: Mapping[str, Any]) -> State:
    """Return the state that `to_json` wrote.

    Raises:
        ValueError, KeyError, TypeError: It is another document.
    """
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r}, this program reads {SCHEMA}")
    values = {name: data[name] for name in State.__dataclass_fields__ if name in data}
    values["hosts"] = tuple(Host(**known(Host, item)) for item in values["hosts"])
    values["excluded"] = tuple(Excluded(**known(Excluded, item)) for item in values["excluded"])
    values["attempts"] = tuple(Attempt(**known(Attempt, {**item, "hosts": tuple(item["hosts"])})) for item in values["attempts"])
    for name in ("unknown", "placed"):
        values[name] = tuple(sorted((str(host), float(since)) for host, since in values.get(name, {}).items()))
    for name in ("lost", "unclear", "absent"):
        values[name] = tuple(values.get(name, ()))
    return State(**values)


def load(path: Path) -> State | None:
    """Read the state; None where there is none yet.

    Raises:
        PlanError: It cannot be read; the job's state is not guessed.
    """
    try:
        text = safe_files.read_regular(path, max_bytes=_LARGEST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error}", fix="mend the shared storage; the watcher starts again by itself") from error
    try:
        return from_json(parse_json(text))
    except (ValueError, KeyError, TypeError) as error:
        fix = "use the version of primus-watch that wrote it; restore a damaged file, or submit the job anew with its checkpoints"
        raise PlanError(f"{path}: this is no state of a job: {error!r}", fix=fix) from error


def save(path: Path, state: State) -> None:
    """Replace the state, durable before this returns."""
    write_atomic(path, json.dumps(state.to_json(), indent=1) + "\n", mode=0o600)
