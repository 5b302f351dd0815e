"""The events of a run, which the live view, the journal and the report read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from primus_bootstrap.core.verdicts import Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

Status = Literal["ok", "changed", "failed", "unreachable", "skipped", "ignored"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run started. `at` is seconds since the epoch (UTC); `steps` are (phase, hosts) in order."""

    run: str
    verb: str
    cluster: str
    at: float
    steps: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class HostPinned:
    """A host key was pinned. `fingerprint` has ssh's format; `source` is `hosts.yaml` or `first contact`."""

    host: str
    address: str
    key_type: str
    fingerprint: str
    source: str


@dataclass(frozen=True, slots=True)
class Preparing:
    """The run does something that belongs to no phase, for example it starts Ansible."""

    what: str
    at: float


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """Phase `number` of `count` started on `hosts`."""

    phase: str
    number: int
    count: int
    hosts: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task started; `role` is empty outside a role."""

    phase: str
    role: str
    task: str
    at: float


@dataclass(frozen=True, slots=True)
class HostResult:
    """One task ended on one host.

    `message` is the cause of a failure and `fix` the instruction; both are empty otherwise. The status `ignored` means that the
    task failed or the host did not answer, and that the playbook continues. `diff` is a unified diff, if the run requested
    differences. `seconds` is the duration on that host.
    """

    host: str
    phase: str
    role: str
    task: str
    task_path: str
    status: Status
    seconds: float = 0.0
    message: str = ""
    fix: str = ""
    diff: str = ""


@dataclass(frozen=True, slots=True)
class VerdictFound:
    """A check on a host returned a verdict."""

    phase: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class PhaseFinished:
    """A phase ended after `seconds`.

    `counts` are (host, ok, changed, skipped). The journal stores these sums instead of each result that changed nothing.
    `aborted` means that Ansible stopped the phase before its end.
    """

    phase: str
    seconds: float
    counts: tuple[tuple[str, int, int, int], ...]
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Recap:
    """Ansible's recap: the hosts that failed or were unreachable. It excludes failures that a rescue block handled."""

    failed: tuple[str, ...]
    unreachable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended; a killed run has no such event. `problem` is set if Ansible itself failed."""

    at: float
    exit_code: int
    problem: str = ""


Event = RunStarted | Preparing | HostPinned | PhaseStarted | TaskStarted | HostResult | VerdictFound | PhaseFinished | Recap | RunFinished

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as plain data for one line of the journal."""
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(data: Mapping[str, Any]) -> Event | None:
    """Read an event from one line of the journal; return None for an unknown kind."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        return None
    values = {field.name: _frozen(data[field.name]) for field in fields(kind) if field.name in data}
    if kind is VerdictFound:
        values["verdict"] = parse_verdict(data["verdict"])
    return kind(**values)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
