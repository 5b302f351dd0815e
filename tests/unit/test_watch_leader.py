"""primus_bootstrap.launch.watch.leader: one watcher leads a job, and no two hosts' clocks are compared."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import LockedError
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch import restart_policy
from primus_bootstrap.launch.watch.job_spec import Host, Job
from primus_bootstrap.launch.watch.leader import Leader
from primus_bootstrap.launch.watch.restart_policy import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder

STATE = states.State("a-000000", states.RUNNING, watcher="elsewhere/boot/1", updated=5.0)
JOB = Job("a-000000", "a", "ada", "direct", 2, ("train",))


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """Create a job's folder with a state from a watcher on another host."""
    found = folders.JobFolder(tmp_path)
    states.save(found.state_file, STATE)
    return found


def test_a_watcher_on_another_host_that_still_writes_keeps_the_job(folder: JobFolder) -> None:
    """Its clock does not matter, only that it wrote while this one waited."""
    later = threading.Timer(0.2, states.save, (folder.state_file, replace(STATE, updated=1.0)))
    later.start()
    with pytest.raises(LockedError, match="the watcher on elsewhere leads this job"):
        Leader(folder).wait(STATE, threading.Event(), listen_s=0.6)
    later.join()


def test_a_dead_watcher_is_replaced(folder: JobFolder) -> None:
    """On another host after a wait; on this host at once, because of the lock file."""
    began = time.monotonic()
    Leader(folder).wait(STATE, threading.Event(), listen_s=0.4)
    listened = time.monotonic() - began
    mine = Leader(folder)
    Leader(folder).wait(replace(STATE, watcher=mine.name), threading.Event(), listen_s=60)

    assert listened >= 0.4
    assert time.monotonic() - began < 30
    assert Leader(folder).name != mine.name


def test_a_new_watcher_uses_its_own_clock() -> None:
    """The clock of the other host may be an hour ahead. The fence starts again."""
    ahead = 4600.0
    state = replace(
        STATE, phase=states.STOPPING, revoked=True, revoked_at=900.0, not_before=ahead, deadline=ahead, step_at=ahead, since=ahead,
        unknown=(("h1", ahead),), failing_since=ahead,
    )  # fmt: skip
    found = restart_policy.take_over(JOB, state, 1000.0)

    assert (found.revoked_at, found.step_at, found.since, found.unknown, found.failing_since) == (1000.0, 1000.0, 1000.0, (), 0.0)
    assert found.not_before == 1000.0 + 300
    assert found.deadline == 1000.0 + JOB.grace_s + restart_policy.AFTER_GRACE_S


def test_unknown_keys_of_a_state_are_skipped(tmp_path: Path) -> None:
    """Watchers are upgraded while jobs run, and nodes still read their lease."""
    state = replace(
        STATE, hosts=(Host("h1", "a"),), excluded=(states.Excluded("h2", 1.0, "x", "y"),), attempts=(states.Attempt(1, ("h1",)),)
    )
    data = state.to_json()
    for item in (data, data["hosts"][0], data["excluded"][0], data["attempts"][0]):
        item["new"] = 1
    (tmp_path / "state.json").write_text(json.dumps(data))

    assert states.load(tmp_path / "state.json") == state


def test_a_silent_target_does_not_change_the_state_of_nodes() -> None:
    """A silent node stays silent."""
    state = replace(STATE, unknown=(("h1", 900.0),), hosts=(Host("h1", "a"),), attempts=(states.Attempt(1, ("h1",)),))
    after = restart_policy.evaluate(JOB, state, observations.Observation(observations.SILENT), Clock(910.0))

    assert after.state.unknown == (("h1", 900.0),)
    assert after.events == ()
