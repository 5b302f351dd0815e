"""primus-watch with the target `direct`: real SSH, real programs on the nodes, and lost nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core import verdicts
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import node_record, watch_program
from primus_bootstrap.launch.watch.attempt import read_boot_id
from primus_bootstrap.launch.watch.broker_client import Broker
from primus_bootstrap.launch.watch.targets.direct import DirectTarget
from tests.integration.watch_rig import Site, events, needs_sshd, steps, watch_words
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = pytest.mark.long("primus_bootstrap/launch/watch", "tests/integration/watch_rig.py")
pytestmark = needs_sshd

# Without a lost node, a disk that blocks for seconds must not cause one.
CALM = {"lost_after_s": 60, "lease_s": 60}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Create a site with three nodes."""
    made = Site(tmp_path)
    made.start("node1", "node2", "node3")
    yield made
    made.end()


def test_a_job_runs_to_its_end_with_the_zip_application(tmp_path: Path) -> None:
    """Watcher, node agent and launcher are in one file. Exit code 0 means done."""
    site = Site(tmp_path, bundled=True)
    site.start("node1")
    folder = site.submit(site.job(words=["12", "0.05"], policy=CALM))
    try:
        ended = site.watch(folder).wait(60)
    finally:
        site.end()
    state = folder.state()

    assert ended == 0
    assert state is not None
    assert (state.phase, state.attempt, state.step, state.checkpoint, state.restarts) == ("done", 1, 12, 10, 0)
    assert [event["kind"] for event in events(folder)] == [
        "submitted", "watcher_started", "attempt_starting", "attempt_running", "first_step", "attempt_ended", "done",
    ]  # fmt: skip


def test_a_lost_node_is_replaced_within_seconds(site: Site) -> None:
    """A spare continues from the last checkpoint. The lost node is excluded, with a verdict."""
    folder = site.submit(site.job())
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 7)
    site.nodes["node1"].kill()

    assert watcher.wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt, state.restarts) == ("done", 2, 1)
    assert [item.host for item in state.excluded] == ["node1"]
    by_step = {line["step"]: line["node"] for line in steps(folder)}
    assert sorted(by_step) == list(range(1, 21))
    assert set(by_step.values()) == {"node1", "node2"}
    verdict = verdicts.parse_verdict(json.loads((folder.path / "verdicts.jsonl").read_text()))
    assert (verdict.host, verdict.check, verdict.verdict, verdict.found) == ("node1", "workload_node", "fail", "node_lost")


def test_a_killed_watcher_loses_nothing(site: Site) -> None:
    """Training continues, and the next watcher finds the running attempt."""
    folder = site.submit(site.job(policy=CALM))
    site.watch(folder)
    until(lambda: len(steps(folder)) >= 3)
    site.kill_watcher()
    before = len(steps(folder))
    until(lambda: len(steps(folder)) >= before + 3)
    again = site.watch(folder)

    assert again.wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt) == ("done", 1)
    assert [line["step"] for line in steps(folder)] == list(range(1, 21))


@LONG
def test_a_full_disk_stops_the_watcher_but_not_the_job(site: Site) -> None:
    """The next watcher continues."""
    folder = site.submit(site.job(policy=CALM))
    site.watch(folder)
    until(lambda: len(steps(folder)) >= 2)
    site.kill_watcher()
    full = subprocess.run(
        ["prlimit", "--fsize=100", *watch_words(), "run", "--every-s", "0.3", "--folder", str(folder.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert full.returncode == 3
    assert "the shared storage failed: [Errno 27] File too large" in full.stderr

    assert site.watch(folder).wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt) == ("done", 1)


def test_a_second_watcher_is_refused(site: Site) -> None:
    """A job has one watcher."""
    folder = site.submit(site.job(policy=CALM))
    first = site.watch(folder)
    until(lambda: folder.state() is not None)

    assert site.watch(folder).wait(30) == 5
    site.watcher = first


def test_a_node_without_ssh_continues(site: Site) -> None:
    """The job makes steps, so the node is not lost. Its end is read from the shared storage."""
    folder = site.submit(site.job())
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 3)
    site.nodes["node1"].cut()

    assert watcher.wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt) == ("done", 1)
    assert [event["kind"] for event in events(folder, "node_unknown", "node_lost")] == ["node_unknown"]


@LONG
def test_a_lost_node_ends_its_launcher_before_the_next_attempt(site: Site) -> None:
    """It cannot be reached, so it ends itself when its lease is revoked."""
    folder = site.submit(site.job())
    (folder.run / "drill-8").write_text("hang")
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 7)
    site.nodes["node1"].cut()
    assert site.nodes["node1"].ranks()
    until(lambda: events(folder, "attempt_starting")[1:], "the second attempt")

    assert site.nodes["node1"].ranks() == ()
    assert watcher.wait(90) == 0
    assert folder.state().phase == "done"  # type: ignore[union-attr]
    assert "lease" in (folder.attempt(1) / "node-00000.json").read_text()


@LONG
def test_a_hang_is_ended_and_training_continues(site: Site) -> None:
    """No new step within progress_timeout_s."""
    folder = site.submit(site.job(policy={**CALM, "progress_timeout_s": 5}))
    (folder.run / "drill-8").write_text("hang")

    assert site.watch(folder).wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt, state.attempts[0].cause) == ("done", 2, "no_progress")
    assert [event["reason"] for event in events(folder, "stopping")] == ["no new step for 5 s"]
    assert "suspects" in json.loads((folder.attempt(1) / "diagnosis.json").read_text())


@LONG
def test_a_repeated_loss_that_is_not_finite_ends_the_job(site: Site) -> None:
    """The job restarts once. The reason and a fix are in its state."""
    folder = site.submit(site.job(words=["20", "0.05"], policy=CALM))
    (folder.run / "drill-8").write_text("again nan")

    assert site.watch(folder).wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt, state.attempts[-1].cause, state.attempts[-1].exit_code) == ("failed", 2, "not_finite", 76)
    assert state.reason.startswith("ended twice after step 7 for the same reason: ")
    assert state.fix


def test_the_error_of_a_launcher_is_the_reason(site: Site) -> None:
    """Without ranks there are no logs of ranks."""
    folder = site.submit(site.job(words=["train", "pretrain"], options=["--single", "--script=/missing.py"], policy=CALM))

    assert site.watch(folder).wait(60) == 0
    state = folder.state()
    assert state is not None
    assert state.phase == "failed"
    assert state.reason == ("ended twice before the first step for the same reason: --script /missing.py: file not found (exit code 2)")


@LONG
def test_a_checkpointed_stop_from_outside_restarts_at_once(site: Site) -> None:
    """Exit code 75 is not a failure: no retry is counted, and no host excluded."""
    folder = site.submit(site.job(policy=CALM))
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 7)
    os.kill(json.loads((site.nodes["node1"].folder / "units" / "primus-job-small-0a1b2c-1.service").read_text())["pid"], signal.SIGTERM)

    assert watcher.wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt, state.restarts_without_progress, state.excluded) == ("done", 2, 0, ())
    assert [line["step"] for line in steps(folder)] == list(range(1, 21))


@LONG
def test_a_job_that_never_makes_a_step_fails(site: Site) -> None:
    """The retry budget ends it. The logs of every attempt are kept."""
    folder = site.submit(site.job(words=["no number", "0"], policy={**CALM, "max_restarts_without_progress": 2, "backoff_s": [0]}))

    assert site.watch(folder).wait(90) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.attempt) == ("failed", 3)
    assert state.reason.startswith("2 restarts without progress at all; the last attempt: ")
    assert "ValueError" in (folder.attempt(1) / "logs" / "rank-00000.log").read_text()
    assert "ValueError" in (folder.run / "logs" / "rank-00000.log").read_text()


@LONG
def test_a_cancelled_job_keeps_its_checkpoint_and_can_be_resumed(site: Site) -> None:
    """With the commands `request cancel` and `request resume`."""
    folder = site.submit(site.job(policy=CALM))
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 7)
    assert watch_program.main(["request", "--folder", str(folder.path), "cancel"]) == 0
    assert watcher.wait(60) == 0
    cancelled = folder.state()
    assert cancelled is not None
    assert (cancelled.phase, cancelled.checkpoint) == ("cancelled", cancelled.step)
    assert watch_program.main(["request", "--folder", str(folder.path), "resume"]) == 0

    assert site.watch(folder).wait(90) == 0
    assert folder.state().phase == "done"  # type: ignore[union-attr]
    assert [line["step"] for line in steps(folder)] == list(range(1, 21))


@LONG
def test_a_resume_during_a_cancellation_is_applied_later(site: Site) -> None:
    """The request is kept until the job is cancelled."""
    folder = site.submit(site.job(words=["20", "0.5"], policy=CALM))
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 2)
    folder.request("cancel")
    until(lambda: folder.state().phase == "stopping")  # type: ignore[union-attr]
    folder.request("resume")

    assert watcher.wait(90) == 0
    assert folder.state().phase == "done"  # type: ignore[union-attr]
    assert [event["kind"] for event in events(folder, "cancelled", "resumed")] == ["cancelled", "resumed"]


def test_the_age_of_a_health_record_uses_one_clock(site: Site) -> None:
    """A host whose clock is ahead must not return with an old record."""
    folder = site.submit(site.job())
    target = DirectTarget(folder.job(), folder, Broker(site.socket))
    ahead = time.time() + 3600
    answer = {"health": "pass", "now": ahead, "written": ahead - 100, "units": []}
    found = target._candidate(folder.job().direct.hosts[0], answer, spare=False)

    assert abs(time.time() - 100 - found.written) < 5
    assert target.broker.ask_node("node1", {"verb": "probe"}, timeout_s=30)["now"] > ahead - 3660


def test_a_host_with_another_host_key_is_not_used(site: Site) -> None:
    """It counts as silent, with ssh's message."""
    known = site.host_keys / "node1"
    other = (site.folder / "user_key.pub").read_text().split()[:2]
    known.write_text(" ".join([known.read_text().split()[0], *other]) + "\n")
    folder = site.submit(site.job(words=["3", "0.05"]))

    assert site.watch(folder).wait(60) == 0
    assert [host.name for host in folder.state().hosts] == ["node2"]  # type: ignore[union-attr]


def test_an_attempt_is_started_only_once(site: Site) -> None:
    """A watcher may repeat the request after a crash or a lost answer."""
    folder = site.submit(site.job())
    job = folder.job()
    state = states.State(job.id, phase=states.STARTING, attempt=1, hosts=job.direct.hosts, attempts=(states.Attempt(1),))
    states.save(folder.state_file, state)
    target = DirectTarget(job, folder, Broker(site.socket))
    for _ in range(3):
        target.start(state)
    until(lambda: len(steps(folder)) >= 2)
    site.nodes["node1"].kill()
    site.bring("node1")
    until(lambda: target.observe(state).nodes[0].state != "silent")
    target.start(state)
    until(lambda: site.nodes["node1"].launchers() == ())

    assert target.refused == {}
    assert "was already started" in (site.nodes["node1"].folder / "units" / "log").read_text()
    assert [line["step"] for line in steps(folder)] == list(range(1, len(steps(folder)) + 1))


def test_a_rebooted_node_differs_from_a_killed_launcher(site: Site) -> None:
    """By the boot id in the record: only a reboot excludes the node."""
    folder = site.submit(site.job())
    job = folder.job()
    state = states.State(job.id, phase=states.RUNNING, attempt=1, hosts=job.direct.hosts, attempts=(states.Attempt(1),))
    target = DirectTarget(job, folder, Broker(site.socket))
    record = node_record.NodeRecord(0, "node1", "node1", read_boot_id(), "", 5.0)
    assert node_record.claim(folder.attempt(1), record) == ""
    killed = target.observe(state).nodes[0]
    (folder.attempt(1) / "node-00000.json").unlink()
    assert node_record.claim(folder.attempt(1), replace(record, boot_id="another boot")) == ""
    restarted = target.observe(state).nodes[0]

    assert (killed.state, killed.exit_code, killed.restarted) == ("ended", None, False)
    assert (restarted.state, restarted.exit_code, restarted.restarted) == ("ended", None, True)
