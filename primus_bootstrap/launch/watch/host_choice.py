"""Which hosts the next attempt runs on, and which of the excluded ones come back. Pure: plain data in, plain data out."""

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
    """The hosts of the next attempt, and what stays excluded; `why` says why there are not enough.

    Where the target takes the hosts itself there are none, and `spares` says whether spare ones may be among them.
    """

    hosts: tuple[Host, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    returned: tuple[str, ...] = ()
    why: str = ""
    spares: bool = False


def choose(job: Job, state: State, candidates: Candidates) -> Choice:
    """Choose among candidates.

    Excluded hosts stay out as long as there are others. They come back, the longest excluded first, when nothing else is left and they
    answer, with a health record that passes and is newer than the exclusion; where it was not for broken hardware, unknown health will do.
    """
    if candidates.why:
        return Choice(excluded=state.excluded, why=candidates.why)
    if candidates.chosen_by_target:
        return _left_out(job, state, candidates)
    excluded = {item.host: item for item in state.excluded}
    wrong = {item.host.name: _wrong(job, item, excluded.get(item.host.name)) for item in candidates.hosts}
    able = [item for item in candidates.hosts if not wrong[item.host.name]]
    order = {item.host.name: index for index, item in enumerate(candidates.hosts)}

    def rank(item: Candidate) -> tuple[bool, float, bool, bool, int]:
        mine = excluded.get(item.host.name)
        unproven_spare = item.spare and item.health != PASS
        return mine is not None, mine.since if mine else 0.0, unproven_spare, item.spare, order[item.host.name]

    chosen = sorted(sorted(able, key=rank)[: job.nodes], key=lambda item: order[item.host.name])
    if len(chosen) < job.nodes:
        return Choice(excluded=state.excluded, why=_too_few(job, wrong))
    names = {item.host.name for item in chosen}
    returned = tuple(name for name in excluded if name in names)
    return Choice(tuple(item.host for item in chosen), tuple(item for item in state.excluded if item.host not in names), returned)


def _wrong(job: Job, item: Candidate, mine: Excluded | None) -> str:
    """Say why a host cannot be taken; empty where it can."""
    if not item.answers:
        return f"does not answer ({item.why})"
    if item.health == FAIL:
        return f"is not healthy ({item.why})"
    if item.gpus is not None and item.gpus < job.gpus_per_node:
        return f"has {item.gpus} GPUs"
    if item.busy and job.gpus_per_node:
        return f"runs {item.busy}"
    if mine is None or (item.written > mine.since if item.health == PASS else not mine.hardware):
        return ""
    return f"is excluded ({mine.reason}) and has no newer health record that passes"


def _too_few(job: Job, wrong: dict[str, str]) -> str:
    able = sum(not why for why in wrong.values())
    return f"{job.nodes} hosts are needed and {able} can be had: {'; '.join(f'{name} {why}' for name, why in wrong.items() if why)}"


def _left_out(job: Job, state: State, candidates: Candidates) -> Choice:
    """Trim the list of hosts that Slurm is told to leave out, so that enough remain, and say whether spare hosts are needed.

    Slurm refuses a job that could never run. Spare hosts take the place of others where those that Slurm can use now are too few and
    become enough with them. Else hosts that are left out and that Slurm can use now come back first, those for broken hardware last;
    hosts that are down come back only where the partition would be too small without them.
    """
    left = {item.host for item in state.excluded}
    usual = tuple(item for item in candidates.hosts if not item.spare)
    spares = _able(usual, left) < job.nodes <= _able(candidates.hosts, left)
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


def _able(hosts: Iterable[Candidate], left: set[str]) -> int:
    """Count the hosts that can be used now and are not left out."""
    return sum(item.answers and item.host.name not in left for item in hosts)
