"""primus_bootstrap.launch.watch.leader: one watcher leads a job, and no two hosts' clocks are compared."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import LockedError
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch.attempt import Lease
from primus_bootstrap.launch.watch.broker_client import Broker
from primus_bootstrap.launch.watch.loop import Watcher
from primus_bootstrap.launch.watch.restart_policy import Decision
from primus_bootstrap.launch.watch.watch_program import make_target
from tests.integration.watch_rig import Site, needs_sshd, steps
from tests.unit.test_watch_leader import STATE, folder
from tests.unit.test_watch_leader import folder as folder
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Create a site with one node."""
    made = Site(tmp_path)
    made.start("node1")
    yield made
    made.end()


@needs_sshd
def test_a_watcher_that_lost_its_job_stops_writing(site: Site) -> None:
    """File locks may be local to a host. The job continues."""
    folder = site.submit(site.job(words=["500", "0.2"]))
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 2)
    state = folder.state()
    assert state is not None
    taken = replace(state, watcher="elsewhere/boot/1", updated=1.0)
    states.save(folder.state_file, taken)

    assert watcher.wait(60) == 5
    assert folder.state() == taken
    assert site.nodes["node1"].launchers()


@needs_sshd
def test_a_watcher_that_lost_its_job_changes_no_attempt(site: Site) -> None:
    """The other watcher has started the next attempt."""
    folder = site.submit(site.job())
    (folder.run / "logs").mkdir()
    watcher = Watcher(folder.job(), folder, make_target(folder.job(), folder, Broker(site.socket)))
    states.save(folder.state_file, replace(STATE, job=folder.path.name, attempt=2))
    mine = replace(STATE, phase=states.WAITING, attempt=1, watcher=watcher.leader.name, attempts=(states.Attempt(1),))
    with pytest.raises(LockedError):
        watcher._step(mine)

    assert (folder.run / "logs").is_dir()


@needs_sshd
def test_the_fence_starts_after_the_revocation_is_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """On slow storage, nodes can read it only later."""
    folder = site.submit(site.job())
    watcher = Watcher(folder.job(), folder, make_target(folder.job(), folder, Broker(site.socket)))
    before = replace(STATE, job=folder.path.name, watcher=watcher.leader.name, attempts=(states.Attempt(1),))
    states.save(folder.state_file, before)
    save = states.save

    def slow(path: Path, state: states.State) -> None:
        time.sleep(0.5)
        save(path, state)

    monkeypatch.setattr(states, "save", slow)
    decided = time.time()
    after = watcher._take(before, Decision(replace(before, revoked=True, revoked_at=decided)))

    assert after.revoked_at >= decided + 0.5


def test_a_lease_counts_from_before_it_was_read(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow read is as old as its start."""
    read = states.load

    def slow(path: Path) -> states.State | None:
        found = read(path)
        time.sleep(1.2)
        return found

    monkeypatch.setattr(states, "load", slow)
    lease = Lease(folder, 0, 1.0)
    lease.look()

    assert lease.problem.startswith("the lease could not be read for 1")
