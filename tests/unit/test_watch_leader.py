"""primus_bootstrap.launch.watch.leader: one watcher leads a job, and no two hosts' clocks are compared."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch import restart_policy
from primus_bootstrap.launch.watch.job_spec import Host, Job
from primus_bootstrap.launch.watch.leader import Leader, LockedError
from primus_bootstrap.launch.watch.restart_policy import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder

STATE = states.State("a-000000", states.RUNNING, watcher="elsewhere/boot/1", updated=5.0)
JOB = Job("a-000000", "a", "ada", "direct", 2, ("train",))


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """Give a job's folder with a state that a watcher of another host wrote."""
    found = folders.JobFolder(tmp_path)
    states.save(found.state_file, STATE)
    return found


def test_a_watcher_of_another_host_that_still_writes_is_left_alone(folder: JobFolder) -> None:
    """Whatever its clock says: what counts is that it wrote while this one listened."""
    later = threading.Timer(0.2, states.save, (folder.state_file, replace(STATE, updated=1.0)))
    later.start()
    with pytest.raises(LockedError, match="the watcher on elsewhere leads this job"):
        Leader(folder).wait(STATE, threading.Event(), listen_s=0.6)
    later.join()


def test_a_watcher_that_is_gone_is_replaced(folder: JobFolder) -> None:
    """On another host after listening, on this host at once: the lock of the job has told."""
    began = time.monotonic()
    Leader(folder).wait(STATE, threading.Event(), listen_s=0.4)
    listened = time.monotonic() - began
    mine = Leader(folder)
    Leader(folder).wait(replace(STATE, watcher=mine.name), threading.Event(), listen_s=60)

    assert listened >= 0.4
    assert time.monotonic() - began < 30
    assert Leader(folder).name != mine.name


def test_a_watcher_that_takes_over_counts_by_its_own_clock() -> None:
    """The host before was an hour ahead: nobody waits for that hour, and the lease of nodes that must end counts from now."""
    ahead = 4600.0
    state = replace(
        STATE, phase=states.STOPPING, revoked=True, revoked_at=900.0, not_before=ahead, deadline=ahead, step_at=ahead, since=ahead,
        unknown=(("h1", ahead),), failing_since=ahead,
    )  # fmt: skip
    found = restart_policy.take_over(JOB, state, 1000.0)

    assert (found.revoked_at, found.step_at, found.since, found.unknown, found.failing_since) == (1000.0, 1000.0, 1000.0, (), 0.0)
    assert found.not_before == 1000.0 + 300
    assert found.deadline == 1000.0 + JOB.grace_s + restart_policy.AFTER_GRACE_S


def test_a_newer_watcher_may_say_more_than_a_node_knows(tmp_path: Path) -> None:
    """Watchers are upgraded while jobs run; a node of before reads its lease all the same."""
    state = replace(
        STATE, hosts=(Host("h1", "a"),), excluded=(states.Excluded("h2", 1.0, "x", "y"),), attempts=(states.Attempt(1, ("h1",)),)
    )
    data = state.to_json()
    for item in (data, data["hosts"][0], data["excluded"][0], data["attempts"][0]):
        item["new"] = 1
    (tmp_path / "state.json").write_text(json.dumps(data))

    assert states.load(tmp_path / "state.json") == state


def test_a_controller_that_does_not_answer_says_nothing_of_nodes() -> None:
    """A node that was silent before is not called back because its target fell silent too."""
    state = replace(STATE, unknown=(("h1", 900.0),), hosts=(Host("h1", "a"),), attempts=(states.Attempt(1, ("h1",)),))
    after = restart_policy.evaluate(JOB, state, observations.Observation(observations.SILENT), Clock(910.0))

    assert after.state.unknown == (("h1", 900.0),)
    assert after.events == ()
