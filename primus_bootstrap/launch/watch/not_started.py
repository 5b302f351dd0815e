"""Hosts that a platform has chosen and on which the attempt has not begun: since when, why, and which of them to keep off. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import observation as seeing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.observation import NodeObservation, Observation

_ABOUT_S = 60.0  # what holds up all hosts does so at about the same time


def placed(state: State, seen: Observation, now: float) -> tuple[tuple[str, float], ...]:
    """Return since when hosts that the platform has chosen have yet to start: from then on it is their time, and no queue's."""
    if seen.status == seeing.SILENT and not seen.nodes:
        return state.placed  # the platform did not answer, and says nothing of hosts
    before = dict(state.placed)
    names = sorted(node.host for node in seen.nodes if node.placed and node.state == seeing.ABSENT)
    return tuple((host, before.get(host, now)) for host in names)


def limit_s(job: Job) -> int:
    """Return how long they have.

    What a host does before its launcher begins, the download of the image with it, may take as long as the first step after it.
    """
    return job.policy.first_step_timeout_s or job.policy.hosts_timeout_s


def late(job: Job, state: State, now: float, watching_since: float) -> tuple[str, ...]:
    """Return the hosts that hold the attempt up, once one of them has done so for too long."""
    waited = {host: now - max(since, watching_since) for host, since in state.placed}
    if max(waited.values(), default=0.0) <= limit_s(job):
        return ()
    return tuple(host for host, wait in waited.items() if wait > limit_s(job) - _ABOUT_S)


def never_began(seen: Observation) -> list[NodeObservation]:
    """Return the nodes on which the attempt is over before its launcher began."""
    return [node for node in seen.nodes if node.state == seeing.ENDED and not node.begun]


def to_blame(nodes: Iterable[NodeObservation]) -> tuple[str, ...]:
    """Return the hosts among them; a rank for which the platform has yet to find one is none."""
    return tuple(node.host for node in nodes if node.placed)


def told(nodes: Iterable[NodeObservation]) -> str:
    """Return what the platform says of them."""
    return f"it did not begin: {'; '.join(f'{node.host}: {node.why}' for node in nodes)}"
