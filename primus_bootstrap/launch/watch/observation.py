"""What a target observes of an attempt and of its hosts: plain data for the restart policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch.progress import Progress

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.job_spec import Host

# `absent`: the node was not started. `silent`: it did not answer. `queued`: the attempt waits for the scheduler.
QUEUED, RUNNING, ENDED, ABSENT, SILENT = "queued", "running", "ended", "absent", "silent"
# The target's own reason for the end of an attempt.
NODE_FAIL, PREEMPTED, TIME_LIMIT, CANCELLED = "node_fail", "preempted", "time_limit", "cancelled_outside"
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"


@dataclass(frozen=True)
class NodeObservation:
    """One node of an attempt."""

    host: str
    state: str
    exit_code: int | None = None  # exit code of the launcher; None if it is unknown
    restarted: bool = False  # the launcher ended because the host rebooted
    why: str = ""
    host_responds: bool = False  # the launcher did not answer, but the scheduler reports that the host responds
    begun: bool = True  # False if the node ended before its launcher started
    placed: bool = False  # the scheduler chose this host, which has not started the launcher yet, or refused to


@dataclass(frozen=True)
class Observation:
    """An attempt."""

    status: str  # state of the attempt as a whole
    nodes: tuple[NodeObservation, ...] = ()
    verdict: str = ""  # the target's own reason for its end
    target_id: str = ""
    hosts: tuple[Host, ...] = ()  # the hosts, if the target chooses them
    why: str = ""
    paused: bool = False  # the target has suspended it
    progress: Progress = field(default_factory=Progress)
    requests: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Candidate:
    """A host that may run the next attempt."""

    host: Host
    answers: bool
    health: str = UNKNOWN  # verdict of its health checks
    written: float = 0.0  # time of the health checks, in seconds since the epoch
    spare: bool = False
    busy: str = ""  # units of other jobs on it
    gpus: int | None = None  # number of GPUs; None: unknown
    why: str = ""


@dataclass(frozen=True)
class Candidates:
    """The hosts to choose from. With `chosen_by_target` the scheduler chooses, and the watcher only excludes hosts."""

    hosts: tuple[Candidate, ...] = ()
    chosen_by_target: bool = False
    why: str = ""
