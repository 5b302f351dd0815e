"""primus_bootstrap.launch.watch.targets.direct: how often hosts are queried, and how soon a silent one is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import observation
from primus_bootstrap.launch.watch.broker_client import NoAnswerError
from primus_bootstrap.launch.watch.job_folder import JobFolder
from primus_bootstrap.launch.watch.job_spec import DIRECT, Host, Job
from primus_bootstrap.launch.watch.targets.direct import QUERIED_PER_TICK, DirectTarget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass
class Site:
    """Replaces SSH: every host runs the attempt, except those in `dead`. `asked` has the hosts queried since the last tick."""

    dead: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def ask_node(self, node: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Answer like the program on the host."""
        assert (request["verb"], timeout_s > 0) == ("status", True)
        self.asked.append(node)
        if node in self.dead:
            raise NoAnswerError("no answer")
        return {"ok": True, "state": "running", "boot_id": "b"}


@dataclass
class Large:
    """A running job on many hosts."""

    target: DirectTarget
    site: Site
    state: states.State

    def look(self, phase: str = states.RUNNING) -> tuple[set[str], set[str]]:
        """Observe once; return the queried hosts and the silent ones."""
        self.site.asked.clear()
        nodes = self.target.observe(states.State(self.state.job, phase=phase, attempt=1, hosts=self.state.hosts)).nodes
        return set(self.site.asked), {node.host for node in nodes if node.state == observation.SILENT}


def large(folder: Path, count: int) -> Large:
    """Return such a job."""
    site = Site()
    hosts = tuple(Host(f"gpu{number:03d}", f"gpu{number:03d}") for number in range(count))
    (folder / "key").write_text("secret")
    target = DirectTarget(Job("j", "j", "ada", DIRECT, count, ("train",)), JobFolder(folder), site)
    return Large(target, site, states.State("j", hosts=hosts))


@pytest.mark.parametrize("count", [2, QUERIED_PER_TICK])
def test_few_hosts_are_queried_at_every_tick(tmp_path: Path, count: int) -> None:
    """A silent host is found at once."""
    job = large(tmp_path, count)

    assert [len(job.look()[0]) for _ in range(3)] == [count] * 3


def test_many_hosts_are_queried_in_turn(tmp_path: Path) -> None:
    """After the first tick each tick queries a part of them, and all of them within one round."""
    job = large(tmp_path, 4 * QUERIED_PER_TICK)
    first, *turn = [job.look()[0] for _ in range(5)]

    assert len(first) == 4 * QUERIED_PER_TICK
    assert [len(asked) for asked in turn] == [QUERIED_PER_TICK] * 4
    assert set().union(*turn) == first


def test_a_silent_host_is_queried_at_every_tick(tmp_path: Path) -> None:
    """It is found within one round."""
    job = large(tmp_path, 4 * QUERIED_PER_TICK)
    job.look()
    job.site.dead = {"gpu063"}
    looks = [job.look() for _ in range(6)]
    job.site.dead = set()

    assert [silent for _, silent in looks] == [set()] * 3 + [{"gpu063"}] * 3
    assert all("gpu063" in asked for asked, _ in looks[3:])
    assert "gpu063" in job.look()[0]
    assert job.look()[1] == set()


def test_all_hosts_are_queried_while_an_attempt_is_stopped(tmp_path: Path) -> None:
    """The next attempt may start only after all have ended."""
    job = large(tmp_path, 3 * QUERIED_PER_TICK)
    job.look()

    assert len(job.look(states.STOPPING)[0]) == 3 * QUERIED_PER_TICK
