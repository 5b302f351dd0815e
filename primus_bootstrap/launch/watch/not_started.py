"""Hosts that a scheduler chose and on which the attempt has not started: since when, why, and which to exclude. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import observation as observations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.observation import NodeObservation, Observation

_TOGETHER_S = 60.0  # a common cause delays all hosts at about the same time


def placed(state: State, observation: Observation, now: float) -> tuple[tuple[str, float], ...]:
    """Return the hosts that the scheduler chose and that have not started, and since when; from then on the queue is not the cause."""
    if observation.status == observations.SILENT and not observation.nodes:
        return state.placed  # the scheduler did not answer, so the hosts are unknown
    before = dict(state.placed)
    names = sorted(node.host for node in observation.nodes if node.placed and node.state == observations.ABSENT)
    return tuple((host, before.get(host, now)) for host in names)


def limit_s(job: Job) -> int:
    """Return how long a chosen host may take to start, in seconds. Downloading the image may take as long as the first step."""
    return job.policy.first_step_timeout_s or job.policy.hosts_timeout_s


def late(job: Job, state: State, now: float, watching_since: float) -> tuple[str, ...]:
    """Return the hosts that delay the attempt, once one of them is over the limit."""
    waited = {host: now - max(since, watching_since) for host, since in state.placed}
    if max(waited.values(), default=0.0) <= limit_s(job):
        return ()
    return tuple(host for host, wait in waited.items() if wait > limit_s(job) - _TOGETHER_S)


def never_started(observation: Observation) -> list[NodeObservation]:
    """Return the nodes on which the attempt ended before its launcher started."""
    return [node for node in observation.nodes if node.state == observations.ENDED and not node.begun]


def chosen_hosts(nodes: Iterable[NodeObservation]) -> tuple[str, ...]:
    """Return the hosts of these nodes, without ranks for which the scheduler has not found a host yet."""
    return tuple(node.host for node in nodes if node.placed)


def reason(nodes: Iterable[NodeObservation]) -> str:
    """Return the scheduler's messages about these nodes."""
    return f"it did not start: {'; '.join(f'{node.host}: {node.why}' for node in nodes)}"
