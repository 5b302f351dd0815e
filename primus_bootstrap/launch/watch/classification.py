"""Classify the end of an attempt: done, unfinished, caused by a host, caused by the job, or other. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose.causes import CAUSE, HANG, HARDWARE, KILLED
from primus_bootstrap.launch.watch import observation
from primus_bootstrap.launch.watch.job_spec import KUBERNETES, SLURM
from primus_bootstrap.launch.watch.node_record import LauncherError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.launch.diagnose.diagnosis import Diagnosis
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State

DONE, UNFINISHED, NODE, OWN, OTHER, CANCELLED = "done", "unfinished", "node", "own", "other", "cancelled"
# Reasons for which the watcher stops an attempt.
STOP_CANCEL, STOP_FAILED, STOP_LOST, STOP_HANG, STOP_NOT_STARTED = "cancel", "failed", "lost", "no_progress", "not_started"
CHECKPOINTED = 75  # EX_TEMPFAIL of sysexits.h: stopped early with a good checkpoint
STOPPED = (129, 130, 143)  # 128 + SIGHUP, SIGINT, SIGTERM: stopped before the first checkpoint
NOT_ITS_TURN = 79  # of the program `attempt`: the lease was revoked, or the attempt had run before
# Causes of the catalogue that belong to the host, in addition to those of kind hardware.
_OF_THE_HOST = frozenset(
    {"gpu_missing", "gpu_driver_mismatch", "gpu_busy", "shared_memory_full", "disk_read_only", "locked_memory", "network_interface",
     "rdma_failed", "broken_library", "gpu_fabric_not_ready"}
)  # fmt: skip
# Causes that may not occur at the next start, on any host.
_PASSING = frozenset(
    {"port_in_use", "rendezvous_failed", "remote_unreachable", "remote_refused", "storage_lost", "disk_full", "disk_quota", "time_limit",
     "preempted", "checkpoint_not_written", "crash", "host_allocation_failed", "slurm_launch_failed", "container_start_failed"}
)  # fmt: skip
# Meaning of the exit codes of the trainer and primus-cli, if no log gives a cause. The most specific code comes first.
_BY_CODE = (
    (76, "not_finite", "the loss or a gradient was not finite", OWN),
    (66, "data_missing", "data are missing or have another format", OWN),
    (2, "settings_wrong", "a setting is invalid", OWN),
    (3, "cannot_run_here", "a node cannot run it", OWN),
    (4, "step_failed", "a hook or a patch stopped it", OWN),
    (74, "checkpoint_not_written", "checkpoints or telemetry could not be written", OTHER),
    (77, "no_progress", "a step took longer than the trainer's own limit", OTHER),
    (NOT_ITS_TURN, "not_its_turn", "a node did not start: its lease was revoked, or the attempt had run before", OTHER),
)
# Cause of an attempt that was stopped from outside of the job.
FROM_OUTSIDE = "stopped_from_outside"
# Cause of an attempt that the scheduler preempted.
PREEMPTED = "preempted"
# Causes of exclusions where it is unknown whether the host is faulty.
UNCLEAR, NOT_STARTED = "node_unclear", "not_started"
NO_ERROR = LauncherError()
_MORE = "read the launchers' logs: attempts/{attempt}/node-*.log in the job's folder"


@dataclass(frozen=True)
class Outcome:
    """How and why an attempt ended. The next one avoids `hosts`; with `hardware` they need a new health record first."""

    kind: str
    cause: str = ""
    reason: str = ""
    fix: str = ""
    hosts: tuple[str, ...] = ()
    hardware: bool = False


def deciding_code(codes: Iterable[int | None]) -> int | None:
    """Return the most specific exit code of an attempt's nodes; None if no node reported one.

    A failure counts more than a stop, because the watcher stops the other nodes. 0 and a stop count only if every node has reported.
    """
    reported = list(codes)
    known = [code for code in reported if code is not None]
    if not known:
        return None
    if set(known) <= {0, CHECKPOINTED}:
        return None if None in reported and CHECKPOINTED not in known else max(known)
    specific = [code for code, *_ in _BY_CODE if code in known and code != NOT_ITS_TURN]
    others = [code for code in known if code not in (0, CHECKPOINTED, NOT_ITS_TURN, *STOPPED)]
    stopped = [code for code in known if code in STOPPED]
    if stopped and not (specific or others) and None in reported:
        return None
    return (*specific, *others, *stopped, NOT_ITS_TURN)[0]


def classify(
    job: Job, state: State, diagnosis: Diagnosis, node_hosts: Mapping[str, str], *, launcher_error: LauncherError = NO_ERROR
) -> Outcome:
    """Classify an attempt that has ended.

    Args:
        job: The job.
        state: Its state.
        diagnosis: What the logs show.
        node_hosts: Hosts of the job by the nodes' own hostnames.
        launcher_error: The last error that a launcher printed, with its fix.
    """
    outcome = _cancelled(job, state) or _done(state) or _node_lost(job, state) or _early(job, state)
    if outcome is not None:
        return outcome
    outcome = _diagnosed(state, diagnosis, node_hosts) if diagnosis.cause is not None else _undiagnosed(job, state, launcher_error)
    if outcome.kind != OTHER:
        return outcome
    return _absent(job, state) if state.absent else _unclear(job, state) if state.unclear else outcome


def resume_command(job: Job) -> str:
    """Return the command that continues a job, for messages."""
    return f"primus-bootstrap workload resume hosts.yaml {job.id}"


def _cancelled(job: Job, state: State) -> Outcome | None:
    if state.cancel:
        return Outcome(CANCELLED, "cancelled", "cancelled on request")
    if state.verdict == observation.CANCELLED:
        reason = f"cancelled in {job.platform}, not by a request to the watcher"
        return Outcome(CANCELLED, "cancelled", reason, f"to continue: {resume_command(job)}")
    return None


def _done(state: State) -> Outcome | None:
    done = state.current.exit_code == 0 and not state.lost  # 0 means that every node has reported it
    return Outcome(DONE, reason="every node ended with exit code 0") if done else None


def _node_lost(job: Job, state: State) -> Outcome | None:
    if state.lost or state.verdict == observation.NODE_FAIL:
        return _lost(job, state)
    return None


def _early(job: Job, state: State) -> Outcome | None:
    """Classify an attempt that the scheduler ended early, or that ended early with a checkpoint."""
    if state.verdict == observation.PREEMPTED:
        return _preempted(job, state)
    if state.current.exit_code == CHECKPOINTED and state.stopping in ("", STOP_FAILED):
        return Outcome(UNFINISHED, "unfinished", "stopped early with a good checkpoint (exit code 75)")
    if state.verdict == observation.TIME_LIMIT:
        return Outcome(
            OTHER, "time_limit", "Slurm's time limit was reached", "raise --time, or request an earlier checkpoint with --signal"
        )
    return None


def _preempted(job: Job, state: State) -> Outcome:
    if job.target != KUBERNETES or state.current.last_step is not None:
        return Outcome(UNFINISHED, PREEMPTED, f"{job.platform} gave the nodes to a job of higher priority")
    # Kueue reports the same for a job that is preempted and for one whose pods were not all ready in time.
    reason = f"{job.platform} suspended or evicted it before the first step"
    fix = f"find the reason: kubectl -n {job.pods.namespace} get events; kubectl describe its Workload of Kueue"
    return Outcome(UNFINISHED, PREEMPTED, reason, fix)


def _lost(job: Job, state: State) -> Outcome:
    names = ", ".join(state.lost)
    if not state.lost:
        return Outcome(OTHER, "node_lost", "Slurm lost a node of the job")
    reason = f"{names} did not answer for {job.policy.lost_after_s} s, or rebooted during the attempt"
    if job.target == KUBERNETES:
        reason = f"Kubernetes reported {names} as not ready for {job.policy.lost_after_s} s or more, and the job made no step"
    if job.target == SLURM:
        reason = f"Slurm reports {names} as not responding, and the launcher there reported no exit code"
    return Outcome(NODE, "node_lost", reason, f"check {names}", state.lost if _may_exclude(state, state.lost) else ())


def _absent(job: Job, state: State) -> Outcome:
    # If a scheduler chooses the hosts, those of the other ranks may stay unknown.
    hosts = state.absent if job.nodes == 1 or len(state.absent) < job.nodes else ()
    return Outcome(NODE if hosts else OTHER, NOT_STARTED, state.reason, _start_fix(job, state), hosts)


def _start_fix(job: Job, state: State) -> str:
    """Return where the reason is shown why an attempt did not start; the kubelets' events exist for an hour."""
    more = _MORE.format(attempt=state.attempt)
    return f"kubectl -n {job.pods.namespace} get events; {more}" if job.target == KUBERNETES else more


def _unclear(job: Job, state: State) -> Outcome:
    names = ", ".join(state.unclear)
    command = f"kubectl describe node {' '.join(state.unclear)}" if job.target == KUBERNETES else "scontrol show node"
    reason = f"{job.platform} did not release {names} after the attempt; whether the host is lost is unknown"
    hosts = state.unclear if _may_exclude(state, state.unclear) else ()
    return Outcome(NODE if hosts else OTHER, UNCLEAR, reason, f"check {names}: {command}", hosts)


def _diagnosed(state: State, diagnosis: Diagnosis, node_hosts: Mapping[str, str]) -> Outcome:
    cause = diagnosis.cause
    if cause is None:
        raise ValueError("a diagnosis without a cause")
    fix = cause.fix[0] if cause.fix else ""
    nodes = _suspects(diagnosis)
    hosts = tuple(dict.fromkeys(node_hosts.get(node, node) for node in nodes if node))
    where = f" on {', '.join(hosts)}" if hosts else ""
    hardware = cause.kind == HARDWARE and cause.needs != KILLED
    if hardware or cause.kind == HANG or cause.name in _OF_THE_HOST:
        excluded = hosts if _may_exclude(state, hosts) else ()
        kind = NODE if excluded or hardware else OTHER
        return Outcome(kind, cause.name, f"{cause.title}{where}", fix, excluded, hardware)
    kind = OWN if cause.kind == CAUSE and cause.name not in _PASSING else OTHER
    return Outcome(kind, cause.name, f"{cause.title}{where}", fix)


def _suspects(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the nodes that a diagnosis names: for a hang those that others waited for, else the first that failed."""
    if diagnosis.suspects:
        return tuple(item.node for item in diagnosis.suspects)
    if diagnosis.node_unclear or (diagnosis.cause is not None and diagnosis.cause.kind == HANG):
        return ()  # the node that waited longest, or reports that another one did not answer, is not the cause
    if diagnosis.evidence and diagnosis.evidence[0].node:
        return (diagnosis.evidence[0].node,)
    return (diagnosis.first.node,) if diagnosis.first is not None else ()


def _undiagnosed(job: Job, state: State, error: LauncherError) -> Outcome:
    code = state.current.exit_code
    more = _MORE.format(attempt=state.attempt)
    if state.stopping == STOP_HANG:
        return Outcome(OTHER, "no_progress", state.reason, more)
    if state.stopping == STOP_NOT_STARTED:
        return Outcome(OTHER, NOT_STARTED, "; ".join(part for part in (state.reason, error.what) if part), _start_fix(job, state))
    for known, cause, reason, kind in _BY_CODE:
        if code == known:
            return Outcome(kind, cause, f"{error.what or reason} (exit code {code})", error.fix or more)
    if code in STOPPED and state.stopping in ("", STOP_FAILED):
        reason = f"stopped from outside before the first checkpoint (exit code {code})"
        return Outcome(UNFINISHED, FROM_OUTSIDE, reason, "find what stopped it: journalctl on its hosts, for the unit of the attempt")
    details = "no node reported an exit code" if code is None else f"{error.what}{', ' if error.what else ''}exit code {code}"
    return Outcome(OTHER, "unknown", f"the cause is unknown: {details}", error.fix or more)


def _may_exclude(state: State, hosts: Iterable[str]) -> bool:
    """Return whether these are some of several hosts, or the only one. If all of several are named, no host is the cause."""
    names = {host.name for host in state.hosts}
    return bool(names & set(hosts)) and (len(names) == 1 or not names <= set(hosts))
