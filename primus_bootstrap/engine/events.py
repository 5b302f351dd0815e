"""What happens in a run, as values: the live view, the journal and the report all read these and nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from primus_bootstrap.core.verdicts import Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

Status = Literal["ok", "changed", "failed", "unreachable", "skipped", "ignored"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first event of a run. `at` is seconds since the epoch (UTC); `steps` are (phase, hosts) in order."""

    run: str
    verb: str
    cluster: str
    at: float
    steps: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class HostPinned:
    """A host key was pinned: `source` is `hosts.yaml` or `first contact`."""

    host: str
    address: str
    key_type: str
    fingerprint: str
    source: str


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase began: number `number` of `count`, on `hosts`."""

    phase: str
    number: int
    count: int
    hosts: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task began; `role` is empty outside a role."""

    phase: str
    role: str
    task: str
    at: float


@dataclass(frozen=True, slots=True)
class HostResult:
    """One task ended on one host.

    `message` is the cause and `fix` the instruction on a failure, both empty otherwise. `ignored` is one that the playbook goes on
    after: a task that failed, or a host that does not answer. `diff` holds what changed, in
    unified form, where differences were asked for. `seconds` is how long the task took on that host.
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
    """A check on a host handed over its record."""

    phase: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class PhaseFinished:
    """A phase ended after `seconds`.

    `counts` are (host, ok, changed, skipped): the journal keeps these sums and not each result that changed nothing.
    `aborted` says that Ansible gave the phase up for every host, where quorum was at stake.
    """

    phase: str
    seconds: float
    counts: tuple[tuple[str, int, int, int], ...]
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Recap:
    """Ansible's last word on the hosts: who failed, who was not reached. A failure that a rescue mended is not in it."""

    failed: tuple[str, ...]
    unreachable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last event of a run that was not killed. `problem` is set where Ansible itself could not go on."""

    at: float
    exit_code: int
    problem: str = ""


Event = RunStarted | HostPinned | PhaseStarted | TaskStarted | HostResult | VerdictFound | PhaseFinished | Recap | RunFinished

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def event_to_json(event: Event) -> dict[str, Any]:
    """Return plain data for one line of the journal."""
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(data: Mapping[str, Any]) -> Event | None:
    """Read one line of the journal back; None for a kind that this version does not know."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        return None
    values = {field.name: _frozen(data[field.name]) for field in fields(kind) if field.name in data}
    if kind is VerdictFound:
        values["verdict"] = parse_verdict(data["verdict"])
    return kind(**values)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
