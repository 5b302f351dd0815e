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
    """One node of an attempt.

    Attributes:
        exit_code: Exit code of the launcher; None if it is unknown.
        restarted: The launcher ended because the host rebooted.
        heard: The launcher is silent, and the scheduler hears from the host.
        begun: False if the node ended before its launcher started.
        placed: The scheduler chose this host, which has not started the launcher yet, or refused to.
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
    """An attempt.

    Attributes:
        status: State of the attempt as a whole.
        verdict: The target's own reason for its end.
        hosts: The hosts, if the target chooses them.
        paused: The target has suspended it.
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
    """A host that may run the next attempt.

    Attributes:
        health: Verdict of its health checks.
        written: Time of the health checks, in seconds since the epoch.
        busy: Units of other jobs on it.
        gpus: Number of GPUs; None: unknown.
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
    """The hosts to choose from. With `chosen_by_target` the scheduler chooses, and the watcher only excludes hosts."""

    hosts: tuple[Candidate, ...] = ()
    chosen_by_target: bool = False
    why: str = ""
