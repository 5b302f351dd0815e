"""Choose the hosts of the next attempt, and the excluded hosts that return. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch.observation import FAIL, PASS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.launch.watch.job_spec import Host, Job
    from primus_bootstrap.launch.watch.job_state import Excluded, State
    from primus_bootstrap.launch.watch.observation import Candidate, Candidates


@dataclass(frozen=True)
class Choice:
    """The hosts of the next attempt."""

    hosts: tuple[Host, ...] = ()  # the hosts; empty if the scheduler chooses them
    excluded: tuple[Excluded, ...] = ()
    returned: tuple[str, ...] = ()
    why: str = ""  # why there are not enough hosts; empty if there are
    spares: bool = False  # whether the scheduler may use spare hosts


def choose(job: Job, state: State, candidates: Candidates) -> Choice:
    """Choose hosts for the next attempt.

    Excluded hosts stay out while there are enough others. Otherwise they return, the longest excluded first, if they answer and have a
    health record that passes and is newer than the exclusion. Without broken hardware, unknown health is enough.
    """
    if candidates.why:
        return Choice(excluded=state.excluded, why=candidates.why)
    if candidates.chosen_by_target:
        return _for_scheduler(job, state, candidates)
    excluded = {item.host: item for item in state.excluded}
    problems = {item.host.name: _problem(job, item, excluded.get(item.host.name)) for item in candidates.hosts}
    able = [item for item in candidates.hosts if not problems[item.host.name]]
    order = {item.host.name: index for index, item in enumerate(candidates.hosts)}

    def rank(item: Candidate) -> tuple[bool, float, bool, bool, int]:
        exclusion = excluded.get(item.host.name)
        unproven_spare = item.spare and item.health != PASS
        return exclusion is not None, exclusion.since if exclusion else 0.0, unproven_spare, item.spare, order[item.host.name]

    chosen = sorted(sorted(able, key=rank)[: job.nodes], key=lambda item: order[item.host.name])
    if len(chosen) < job.nodes:
        return Choice(excluded=state.excluded, why=_too_few(job, problems))
    names = {item.host.name for item in chosen}
    returned = tuple(name for name in excluded if name in names)
    return Choice(tuple(item.host for item in chosen), tuple(item for item in state.excluded if item.host not in names), returned)


def _problem(job: Job, item: Candidate, exclusion: Excluded | None) -> str:
    """Return why a host cannot be used; empty if it can."""
    if not item.answers:
        return f"does not answer ({item.why})"
    if item.health == FAIL:
        return f"is not healthy ({item.why})"
    if item.gpus is not None and item.gpus < job.gpus_per_node:
        return f"has {item.gpus} GPUs"
    if item.busy and job.gpus_per_node:
        return f"runs {item.busy}"
    if exclusion is None or (item.written > exclusion.since if item.health == PASS else not exclusion.hardware):
        return ""
    return f"is excluded ({exclusion.reason}) and has no newer health record that passes"


def _too_few(job: Job, problems: dict[str, str]) -> str:
    able = sum(not why for why in problems.values())
    return f"{job.nodes} hosts are needed and {able} are available: {'; '.join(f'{name} {why}' for name, why in problems.items() if why)}"


def _for_scheduler(job: Job, state: State, candidates: Candidates) -> Choice:
    """Shorten the list of excluded hosts so that enough remain for the scheduler, and decide whether spare hosts are needed.

    Slurm refuses a job that could never run. Spares are used if the usable hosts are too few and become enough with them. Otherwise
    excluded hosts return: first those that are usable now, those with broken hardware last. Hosts that are down return only if the
    partition would be too small without them.
    """
    excluded = {item.host for item in state.excluded}
    usual = tuple(item for item in candidates.hosts if not item.spare)
    spares = _usable(usual, excluded) < job.nodes <= _usable(candidates.hosts, excluded)
    pool = candidates.hosts if spares else usual
    kept = list(state.excluded)
    returned: list[str] = []
    for names in ({item.host.name for item in pool if item.answers}, {item.host.name for item in pool}):
        for item in sorted(state.excluded, key=lambda item: (item.hardware, item.since)):
            if len(names - {one.host for one in kept}) >= job.nodes:
                break
            if item in kept and item.host in names:
                kept.remove(item)
                returned.append(item.host)
    return Choice(excluded=tuple(kept), returned=tuple(returned), spares=spares)


def _usable(hosts: Iterable[Candidate], excluded: set[str]) -> int:
    """Count the hosts that are usable now and not excluded."""
    return sum(item.answers and item.host.name not in excluded for item in hosts)
