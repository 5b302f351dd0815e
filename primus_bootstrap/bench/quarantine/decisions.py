"""The values that the quarantine gate reads and produces: host states, decisions and the breaker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from primus_bootstrap.core.structured import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.core.verdicts import Verdict

OWNER = "primus-bench"
PENDING = "bench pending"
BREAKER_SCHEMA = "primus.bench-breaker/1"
FIX_BREAKER = (
    "find the cause that these hosts share, then run primus-bootstrap bench hosts.yaml --reset-breaker --confirm CLUSTER_NAME, "
    "and bench them again"
)

# quarantine: take the host out of service, with a record of the owner primus-bench
# release:    put the host back into service, because it passed after the quarantine
# hold:       leave the host as it is, although a change is due; the reason says why
# leave:      change nothing: the host passed, nothing is proved, or the quarantine belongs to another owner
Action = Literal["quarantine", "release", "hold", "leave"]
LEAVE: Action = "leave"


@readable
@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """A record that keeps a host out of service. A drain or cordon without a record is not one."""

    owner: str  # program or person that wrote it
    reason: str  # why the host is out of service
    time: float = 0.0  # when it was written (seconds since the epoch)
    own_clock: bool = False  # whether `time` comes from the host's own clock, as the start times of its checks do

    @property
    def ours(self) -> bool:
        """Whether the bench wrote it, and so may remove it."""
        return self.owner == OWNER

    @property
    def pending(self) -> bool:
        """Whether the host waits for its first bench."""
        return self.ours and self.reason == PENDING


@dataclass(frozen=True, slots=True)
class HostState:
    """The quarantine records of a host before the gate decides; with `known=False` they could not be read."""

    host: str
    records: tuple[QuarantineRecord, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class Breaker:
    """Stops all quarantines until an operator resets it."""

    reason: str  # why it opened
    since: float  # when it opened (seconds since the epoch, UTC)
    hosts: tuple[str, ...]  # the hosts that would have been quarantined
    limit_percent: float = 0.0  # the limit that was exceeded; 0 where it is not known
    fix: str = FIX_BREAKER  # what to do about it

    def to_json(self) -> dict[str, Any]:
        """Return the content of breaker.json."""
        return {
            "schema": BREAKER_SCHEMA,
            "reason": self.reason,
            "since": self.since,
            "hosts": list(self.hosts),
            "limit_percent": self.limit_percent,
        }


def parse_breaker(data: Mapping[str, Any]) -> Breaker:
    """Read breaker.json. A damaged record is an open breaker too."""
    try:
        return Breaker(str(data["reason"]), float(data["since"]), tuple(map(str, data["hosts"])), float(data["limit_percent"]))
    except (KeyError, TypeError, ValueError) as error:
        return Breaker(f"the breaker is open, but its record cannot be read: {error!r}", 0.0, ())


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a host. `reason` goes into the quarantine record; `verdicts` are the verdicts behind the decision."""

    host: str
    action: Action
    reason: str
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class GateResult:
    """The decisions in the order of the host states, and the breaker that is open now; `tripped` if it opened in this bench."""

    decisions: tuple[Decision, ...]
    breaker: Breaker | None
    tripped: bool = False
