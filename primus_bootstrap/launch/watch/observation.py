"""What a target saw of an attempt and of its hosts: plain data between the targets and the policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch.progress import Progress

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.job_spec import Host

# Of a node: `absent` has not been started, `silent` did not answer. Of an attempt: `queued` waits for Slurm.
QUEUED, RUNNING, ENDED, ABSENT, SILENT = "queued", "running", "ended", "absent", "silent"
# The target's own word on an end.
NODE_FAIL, PREEMPTED, TIME_LIMIT, CANCELLED = "node_fail", "preempted", "time_limit", "cancelled_outside"
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"


@dataclass(frozen=True)
class NodeObservation:
    """One node of an attempt.

    `exit_code` None at an end: it ended without a word; `restarted`: because the host was. `heard`: its launcher is silent, and the
    platform hears from the host. `begun` is false at an end before its launcher began. `placed`: the platform has given it this host, whose
    turn it is to start it, or which refused.
    """

    host: str
    state: str
    exit_code: int | None = None
    restarted: bool = False
    why: str = ""
    heard: bool = False
    begun: bool = True
    placed: bool = False


@dataclass(frozen=True)
class Observation:
    """An attempt as its target sees it.

    `status` is the attempt's as a whole. `paused`: the target has stopped it for a while. `hosts` are filled in where the target chooses
    them. `target_id` is the target's own id.
    """

    status: str
    nodes: tuple[NodeObservation, ...] = ()
    verdict: str = ""
    target_id: str = ""
    hosts: tuple[Host, ...] = ()
    why: str = ""
    paused: bool = False
    progress: Progress = field(default_factory=Progress)
    requests: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Candidate:
    """A host that may take part.

    `written` is when its health was looked at, in seconds since the epoch; `busy` names another job there; `gpus` None means unknown.
    """

    host: Host
    answers: bool
    health: str = UNKNOWN
    written: float = 0.0
    spare: bool = False
    busy: str = ""
    gpus: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Candidates:
    """The hosts to choose from. `chosen_by_target`: it takes the hosts itself, and is only told which ones to leave out."""

    hosts: tuple[Candidate, ...] = ()
    chosen_by_target: bool = False
    why: str = ""
