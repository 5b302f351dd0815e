"""What the end of an attempt means: done, to go on, a host's fault, the job's own, or none of these. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose.causes import CAUSE, HANG, HARDWARE, KILLED
from primus_bootstrap.launch.watch import observation
from primus_bootstrap.launch.watch.job_spec import KUBERNETES, SLURM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.launch.diagnose.diagnosis import Diagnosis
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State

DONE, UNFINISHED, NODE, OWN, OTHER, CANCELLED = "done", "unfinished", "node", "own", "other", "cancelled"
# Why the watcher stops an attempt.
STOP_CANCEL, STOP_FAILED, STOP_LOST, STOP_HANG, STOP_NOT_STARTED = "cancel", "failed", "lost", "no_progress", "not_started"
CHECKPOINTED = 75  # sysexits.h EX_TEMPFAIL: stopped early with a good checkpoint
STOPPED = (129, 130, 143)  # 128 + SIGHUP, SIGINT, SIGTERM: stopped before there was a checkpoint to end with
NOT_ITS_TURN = 79  # of the program `attempt`: the lease was taken away, or the attempt had run already
# Causes of the catalogue that stick to the host where they happened, besides those of kind hardware.
_OF_THE_HOST = frozenset(
    {"gpu_missing", "gpu_driver_mismatch", "gpu_busy", "shared_memory_full", "disk_read_only", "locked_memory", "network_interface",
     "rdma_failed", "broken_library"}
)  # fmt: skip
# Causes that may be gone at the next start, wherever it is.
_PASSING = frozenset(
    {"port_in_use", "rendezvous_failed", "remote_unreachable", "remote_refused", "storage_lost", "disk_full", "disk_quota", "time_limit",
     "preempted", "checkpoint_not_written", "crash", "host_allocation_failed"}
)  # fmt: skip
# What the trainer's and primus-cli's exit codes say where no log says more; the most telling first.
_BY_CODE = (
    (76, "not_finite", "the loss or a gradient was not finite", OWN),
    (66, "data_missing", "data are missing or of another kind", OWN),
    (2, "settings_wrong", "a setting is wrong", OWN),
    (3, "cannot_run_here", "a node cannot run it", OWN),
    (4, "step_failed", "a hook or a patch stopped it", OWN),
    (74, "checkpoint_not_written", "checkpoints or telemetry could not be written", OTHER),
    (77, "no_progress", "a step took longer than the trainer's own limit", OTHER),
    (NOT_ITS_TURN, "not_its_turn", "a node refused to start: its lease was gone, or it had run already", OTHER),
)
# The cause of an attempt that somebody outside of the job stopped.
FROM_OUTSIDE = "stopped_from_outside"
# The cause of one whose place the platform took.
PREEMPTED = "preempted"
# Of hosts that are kept off without anybody knowing that they are at fault.
UNCLEAR, NOT_STARTED = "node_unclear", "not_started"
_MORE = "see what the node's launcher said: attempts/{attempt}/node-*.log in the job's folder"


@dataclass(frozen=True)
class Ending:
    """The verdict on an attempt. `hosts` are those that the next one should keep off; `hardware`: they need a proof of health first."""

    kind: str
    cause: str = ""
    reason: str = ""
    fix: str = ""
    hosts: tuple[str, ...] = ()
    hardware: bool = False


def deciding_code(codes: Iterable[int | None]) -> int | None:
    """Return the exit code that says most of an attempt, from those of its nodes; None where no node says anything.

    That one was stopped says less than that another failed: the watcher stops the others. And 0 or a stop is the whole story only where
    every node has said how it ended.
    """
    told = list(codes)
    known = [code for code in told if code is not None]
    if not known:
        return None
    if set(known) <= {0, CHECKPOINTED}:
        return None if None in told and CHECKPOINTED not in known else max(known)
    telling = [code for code, *_ in _BY_CODE if code in known and code != NOT_ITS_TURN]
    others = [code for code in known if code not in (0, CHECKPOINTED, NOT_ITS_TURN, *STOPPED)]
    stopped = [code for code in known if code in STOPPED]
    if stopped and not (telling or others) and None in told:
        return None
    return (*telling, *others, *stopped, NOT_ITS_TURN)[0]


def explain(job: Job, state: State, found: Diagnosis, node_hosts: Mapping[str, str], *, said: str = "") -> Ending:
    """Judge the attempt that is over.

    `node_hosts` maps the names that nodes give themselves to the hosts of the job; `said` is what a launcher said of its own error.
    """
    judged = _wanted(job, state) or _done(state) or _gone(job, state) or _early(job, state)
    if judged is not None:
        return judged
    judged = _known(state, found, node_hosts) if found.cause is not None else _unknown(job, state, said)
    if judged.kind != OTHER:
        return judged
    return _absent(job, state) if state.absent else _unclear(job, state) if state.unclear else judged


def _wanted(job: Job, state: State) -> Ending | None:
    if state.cancel:
        return Ending(CANCELLED, "cancelled", "cancelled on request")
    if state.verdict == observation.CANCELLED:
        where = f"cancelled in {job.platform}, not by a request to the watcher"
        return Ending(CANCELLED, "cancelled", where, "primus-bootstrap workload resume goes on")
    return None


def _done(state: State) -> Ending | None:
    well = state.current.exit_code == 0 and not state.lost  # 0 only where every node has said so
    return Ending(DONE, reason="every node ended with exit code 0") if well else None


def _gone(job: Job, state: State) -> Ending | None:
    if state.lost or state.verdict == observation.NODE_FAIL:
        return _lost(job, state)
    return None


def _early(job: Job, state: State) -> Ending | None:
    """Judge an attempt that was ended early, by the platform or well by itself."""
    if state.verdict == observation.PREEMPTED:
        return _preempted(job, state)
    if state.current.exit_code == CHECKPOINTED and state.stopping in ("", STOP_FAILED):
        return Ending(UNFINISHED, "unfinished", "stopped early with a good checkpoint (exit code 75)")
    if state.verdict == observation.TIME_LIMIT:
        return Ending(OTHER, "time_limit", "Slurm's time limit was reached", "raise --time, or let --signal ask for a checkpoint earlier")
    return None


def _preempted(job: Job, state: State) -> Ending:
    if job.target != KUBERNETES or state.current.first_step is not None:
        return Ending(UNFINISHED, PREEMPTED, f"{job.platform} gave the nodes to a job of higher priority")
    # Kueue says the same of a job that has to make room, and of one whose pods were not all ready in time.
    reason = f"{job.platform} held it back or evicted it before the first step"
    fix = f"see why: kubectl -n {job.pods.namespace} get events, and describe its workload of Kueue"
    return Ending(UNFINISHED, PREEMPTED, reason, fix)


def _lost(job: Job, state: State) -> Ending:
    names = ", ".join(state.lost)
    if not state.lost:
        return Ending(OTHER, "node_lost", "Slurm lost a node of the job")
    reason = f"{names} did not answer for {job.policy.lost_after_s} s, or started again in the middle"
    if job.target == KUBERNETES:
        reason = f"Kubernetes did not hear from {names} for {job.policy.lost_after_s} s and more, and no step was made"
    if job.target == SLURM:
        reason = f"Slurm did not hear from {names} any more, and its launcher fell silent"
    return Ending(NODE, "node_lost", reason, f"look at {names}", state.lost if _some(state, state.lost) else ())


def _absent(job: Job, state: State) -> Ending:
    # Where a platform chooses the hosts, those of the other ranks may never be known.
    hosts = state.absent if job.nodes == 1 or len(state.absent) < job.nodes else ()
    return Ending(NODE if hosts else OTHER, NOT_STARTED, state.reason, _why_not(job, state), hosts)


def _why_not(job: Job, state: State) -> str:
    """Say where to look for the reason why an attempt did not start; of pods the kubelets' events tell, for an hour."""
    more = _MORE.format(attempt=state.attempt)
    return f"kubectl -n {job.pods.namespace} get events; {more}" if job.target == KUBERNETES else more


def _unclear(job: Job, state: State) -> Ending:
    names = ", ".join(state.unclear)
    look = f"kubectl describe node {' '.join(state.unclear)}" if job.target == KUBERNETES else "scontrol show node"
    reason = f"{job.platform} did not get {names} back from the attempt; whether the host is lost is unknown"
    hosts = state.unclear if _some(state, state.unclear) else ()
    return Ending(NODE if hosts else OTHER, UNCLEAR, reason, f"look at {names}: {look}", hosts)


def _known(state: State, found: Diagnosis, node_hosts: Mapping[str, str]) -> Ending:
    cause = found.cause
    if cause is None:
        raise ValueError("a diagnosis without a cause")
    fix = cause.fix[0] if cause.fix else ""
    nodes = _blamed(found)
    hosts = tuple(dict.fromkeys(node_hosts.get(node, node) for node in nodes if node))
    where = f" on {', '.join(hosts)}" if hosts else ""
    hardware = cause.kind == HARDWARE and cause.needs != KILLED
    if hardware or cause.kind == HANG or cause.name in _OF_THE_HOST:
        some = hosts if _some(state, hosts) else ()
        kind = NODE if some or hardware else OTHER
        return Ending(kind, cause.name, f"{cause.title}{where}", fix, some, hardware)
    kind = OWN if cause.kind == CAUSE and cause.name not in _PASSING else OTHER
    return Ending(kind, cause.name, f"{cause.title}{where}", fix)


def _blamed(found: Diagnosis) -> tuple[str, ...]:
    """Return the nodes that a diagnosis points at: of a hang those that others waited for, else where it happened first."""
    if found.suspects:
        return tuple(item.node for item in found.suspects)
    if found.cause is not None and found.cause.kind == HANG:
        return ()  # who waited longest is not the cause
    if found.evidence and found.evidence[0].node:
        return (found.evidence[0].node,)
    return (found.first.node,) if found.first is not None else ()


def _unknown(job: Job, state: State, told: str) -> Ending:
    code = state.current.exit_code
    more = _MORE.format(attempt=state.attempt)
    if state.stopping == STOP_HANG:
        return Ending(OTHER, "no_progress", state.reason, more)
    if state.stopping == STOP_NOT_STARTED:
        return Ending(OTHER, NOT_STARTED, "; ".join(part for part in (state.reason, told) if part), _why_not(job, state))
    for known, cause, reason, kind in _BY_CODE:
        if code == known:
            return Ending(kind, cause, f"{told or reason} (exit code {code})", more)
    if code in STOPPED and state.stopping in ("", STOP_FAILED):
        reason = f"stopped from outside before there was a checkpoint to end with (exit code {code})"
        return Ending(UNFINISHED, FROM_OUTSIDE, reason, "see who stops it: journalctl on its hosts, of the unit that the attempt ran in")
    said = "no node said how it ended" if code is None else f"{told}{', ' if told else ''}exit code {code}"
    return Ending(OTHER, "unknown", f"the cause is unknown: {said}", more)


def _some(state: State, hosts: Iterable[str]) -> bool:
    """Say whether these are some of several hosts, or the only one: where all are named it is hardly the hosts' fault."""
    mine = {host.name for host in state.hosts}
    return bool(mine & set(hosts)) and (len(mine) == 1 or not mine <= set(hosts))
