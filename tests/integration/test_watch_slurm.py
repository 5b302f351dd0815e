"""primus-watch with the target `slurm`: submission, lost nodes and a silent controller."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch.diagnose.diagnosis import Diagnosis
from primus_bootstrap.launch.watch import classification, node_record, restart_policy
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch.host_choice import choose
from primus_bootstrap.launch.watch.job_spec import Host
from primus_bootstrap.launch.watch.loop import Watcher
from primus_bootstrap.launch.watch.node_record import NodeRecord
from primus_bootstrap.launch.watch.restart_policy import Clock
from primus_bootstrap.launch.watch.targets.slurm import SlurmTarget
from tests.integration.watch_rig import TRAIN, Site, events, steps
from tests.integration.watch_slurm_rig import SlurmStandIn, break_command
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder

LONG = pytest.mark.long("primus_bootstrap/launch/watch", "tests/integration/watch_rig.py", "tests/integration/watch_slurm_rig.py")


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmStandIn]:
    """Create a Slurm cluster with three nodes."""
    made = SlurmStandIn(tmp_path / "slurm")
    made.start("n1", "n2", "n3")
    yield made
    made.end()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Create a service host."""
    made = Site(tmp_path)
    made.jobs.mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    yield made
    made.end()


QUICK = {"lost_after_s": 5, "settle_s": 1, "lease_s": 5, "backoff_s": [0]}
# Without a lost node, a disk that blocks for seconds must not cause one.
CALM = {**QUICK, "lost_after_s": 60, "lease_s": 60}


def job(site: Site, **changes: Any) -> dict[str, Any]:
    """Return job.json of a job on one node."""
    found = {
        "schema": "primus.job/1",
        "id": "small-0a1b2c",
        "name": "small",
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "target": "slurm",
        "nodes": 1,
        "words": ["20", "0.2"],
        "options": ["--single", f"--script={site.folder}/train.py"],
        "grace_s": 5,
        "policy": QUICK,
        "slurm": {"partition": "gpu", "options": ["--time=1:00:00"]},
    }
    return {**found, **changes}


def start(site: Site, slurm: SlurmStandIn, **changes: Any) -> JobFolder:
    """Submit a job and watch it."""
    folder = site.submit(job(site, **changes))
    site.watch(folder, PATH=slurm.path)
    return folder


def ended(site: Site) -> int:
    """Wait for the watcher's end."""
    assert site.watcher is not None
    return site.watcher.wait(90)


def test_a_job_is_submitted_once_and_runs_to_its_end(site: Site, slurm: SlurmStandIn) -> None:
    """With its name and --no-requeue."""
    folder = start(site, slurm, words=["6", "0.05"], gpus_per_node=2, processes_per_node=1, policy=CALM)

    assert ended(site) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.step, state.target_id, state.hosts[0].name) == ("done", 6, "100", "n1")
    (words,) = slurm.calls("sbatch")
    assert {
        "--no-requeue",
        "--job-name=primus-job-small-0a1b2c-1",
        "--nodes=1",
        "--partition=gpu",
        "--gpus-per-node=2",
        "--time=1:00:00",
    } <= {*words}


@LONG
def test_a_node_that_slurm_loses_is_excluded(site: Site, slurm: SlurmStandIn) -> None:
    """A new job is submitted at once, and continues from the last checkpoint."""
    folder = start(site, slurm)
    until(lambda: len(steps(folder)) >= 7)
    slurm.lose("n1")

    assert ended(site) == 0
    first, second = slurm.calls("sbatch")
    assert "--exclude=n1" in second
    assert "--exclude=n1" not in first
    assert sorted({line["step"] for line in steps(folder)}) == list(range(1, 21))
    assert [event["host"] for event in events(folder, "node_excluded")] == ["n1"]


@LONG
def test_a_killed_launcher_excludes_no_node(site: Site, slurm: SlurmStandIn) -> None:
    """The node responds to Slurm, and the job restarts."""
    folder = start(site, slurm, words=["12", "0.2"])
    until(lambda: len(steps(folder)) >= 7)
    slurm.silence("n1")

    assert ended(site) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.restarts, state.excluded) == ("done", 1, ())
    assert not (folder.path / "verdicts.jsonl").exists()


SILENT = NodeRecord(1, "n2", "n2", "b", "100", 1.0)
FAILED = replace(SILENT, rank=0, host="n1", ended=2.0, exit_code=1)


@pytest.mark.parametrize(
    ("of_job", "listed", "of_node", "records", "expected", "responds"),
    [
        ("RUNNING", "n1,n2", "idle", (SILENT,), "running", False),
        ("RUNNING", "n1,n2", "allocated*", (FAILED, SILENT), "silent", False),
        ("COMPLETING", "n2", "completing", (FAILED, SILENT), "running", False),
        ("COMPLETING", "n2", "completing*", (FAILED, SILENT), "silent", False),
        ("COMPLETING", "n2", "down*", (SILENT,), "silent", False),
        ("FAILED", "n1,n2", "idle", (FAILED, SILENT), "silent", True),
        ("FAILED", "n1,n2", "down*+", (FAILED, SILENT), "silent", False),
        ("FAILED", "n1,n2", "idle", (), "ended", False),
        ("FAILED", "n1,n2", "idle", (SILENT,), "silent", True),
        ("FAILED", "n1,n2", "down*", (), "silent", False),
        ("NODE_FAIL", "n1,n2", "down*", (FAILED, SILENT), "silent", False),
        ("NODE_FAIL", "n1,n2", "idle", (FAILED, SILENT), "ended", False),
        ("PREEMPTED", "n1,n2", "down*", (FAILED, SILENT), "ended", False),
    ],
)
def test_the_state_of_a_node_by_slurm_and_records(  # noqa: PLR0917 - a table
    site: Site,
    slurm: SlurmStandIn,
    monkeypatch: pytest.MonkeyPatch,
    of_job: str,
    listed: str,
    of_node: str,
    records: tuple[NodeRecord, ...],
    expected: str,
    responds: bool,  # noqa: FBT001
) -> None:
    """The second node has no record. A completing job lists only the nodes that are not released."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site, nodes=2))
    attempt = folder.attempt(1)
    attempt.mkdir()
    for record in records:
        (attempt / f"node-{record.rank:05d}.json").write_text(json.dumps(asdict(record)))
    slurm.put(of_job, *listed.split(","))
    slurm.nodes(n2=of_node)
    hosts = (Host("n1", "n1"), Host("n2", "n2"))
    state = states.State("small-0a1b2c", states.RUNNING, attempt=1, hosts=hosts, target_id="100", attempts=(states.Attempt(1),))
    seen = SlurmTarget(folder.job(), folder).observe(state)

    assert [node.host for node in seen.nodes] == ["n1", "n2"]
    assert (seen.nodes[1].state, seen.nodes[1].host_responds) == (expected, responds)


@pytest.mark.parametrize(
    ("course", "host", "cause", "verdict"),
    [
        (
            (("RUNNING", "idle"), ("COMPLETING", "completing"), ("COMPLETING", "completing*"), ("FAILED", "down*")),
            "n2",
            "node_lost",
            "fail",
        ),
        ((("RUNNING", "idle"), ("COMPLETING", "completing*"), ("NODE_FAIL", "down*")), "n2", "node_lost", "fail"),
        ((("COMPLETING", "completing"),), "n2", "node_unclear", "unknown"),
        ((("COMPLETING", "completing"), ("FAILED", "idle")), None, "unknown", None),
    ],
)
def test_a_silent_launcher_is_evaluated_by_later_answers_of_slurm(  # noqa: PLR0917 - a table
    site: Site,
    slurm: SlurmStandIn,
    monkeypatch: pytest.MonkeyPatch,
    course: tuple[tuple[str, str], ...],
    host: str | None,
    cause: str,
    verdict: str | None,
) -> None:
    """A rank fails before Slurm notices the lost node. The watcher waits for Slurm before it excludes a node."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site, nodes=2, policy={"lost_after_s": 20, "lease_s": 15}))
    folder.attempt(1).mkdir()
    for record in (FAILED, SILENT):
        (folder.attempt(1) / f"node-{record.rank:05d}.json").write_text(json.dumps(asdict(record)))
    hosts = (Host("n1", "n1"), Host("n2", "n2"))
    attempt = states.Attempt(1, ("n1", "n2"))
    state = states.State("small-0a1b2c", states.RUNNING, attempt=1, hosts=hosts, target_id="100", attempts=(attempt,), since=1000.0)
    target, asked = SlurmTarget(folder.job(), folder), folder.job()
    slurm.put(course[0][0], "n1", "n2")
    for look in range(60):
        of_job, of_node = course[min(look // 5, len(course) - 1)]
        slurm.set_state(100, of_job, nodes=["n2"] if of_job == "COMPLETING" else ["n1", "n2"])
        slurm.nodes(n2=of_node)
        state = restart_policy.evaluate(asked, state, target.observe(state), Clock(1000.0 + 2 * look)).state
        if state.phase == states.ENDED:
            break
    judged = classification.classify(asked, state, Diagnosis("", 0), {})
    after = restart_policy.conclude(asked, state, judged, 1100.0).state

    assert state.phase == states.ENDED
    assert state.current.exit_code == 1
    assert look * 2 <= restart_policy.UNSTOPPABLE_S + 15 + restart_policy.FENCE_S + asked.policy.settle_s + 2
    assert ([item.host for item in after.excluded], judged.cause) == ([host] if host else [], cause)
    if verdict:
        assert Watcher(asked, folder, target)._verdict(after.excluded[0], after).verdict == verdict


def test_without_sinfo_no_node_is_lost(site: Site, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job completes with one silent launcher, which may still run."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site, nodes=2))
    slurm.put("COMPLETING", "n2")
    slurm.nodes(n2="down*")
    break_command(slurm, "sinfo")
    hosts = (Host("n1", "n1"), Host("n2", "n2"))
    state = states.State("small-0a1b2c", states.RUNNING, attempt=1, hosts=hosts, target_id="100", attempts=(states.Attempt(1),))

    assert [node.state for node in SlurmTarget(folder.job(), folder).observe(state).nodes] == ["running", "running"]


@LONG
def test_a_running_job_that_slurm_forgets_ends_before_the_next_attempt(site: Site, slurm: SlurmStandIn) -> None:
    """A controller without its state does not know the job, but the launcher runs."""
    folder = start(site, slurm, words=["40", "0.3"])  # Long enough to be seen on a busy machine.
    until(lambda: len(steps(folder)) >= 3)
    (slurm.folder / "jobs" / "100.json").rename(slurm.folder / "lost")

    assert ended(site) == 0
    first = json.loads((folder.attempt(1) / "node-00000.json").read_text())
    starting = [event["time"] for event in events(folder, "attempt_starting")]
    assert first["exit_code"] == 79
    assert first["ended"] < starting[1]
    assert folder.state().excluded == ()  # type: ignore[union-attr]


def test_of_two_slurm_jobs_the_one_that_claimed_the_attempt_counts(
    site: Site, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An sbatch timed out, was repeated, and both succeeded."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site))
    slurm.put("RUNNING", "n1")
    second = json.loads((slurm.folder / "jobs" / "100.json").read_text())
    (slurm.folder / "jobs" / "101.json").write_text(json.dumps({**second, "id": 101, "state": "FAILED", "nodes": ["n2"]}))
    assert node_record.claim(folder.attempt(1), replace(SILENT, rank=0, host="n1")) == ""
    state = states.State("small-0a1b2c", states.STARTING, attempt=1, attempts=(states.Attempt(1),))
    seen = SlurmTarget(folder.job(), folder).observe(state)

    assert (seen.status, seen.target_id, [node.host for node in seen.nodes]) == ("running", "100", ["n1"])


def test_the_reason_of_a_waiting_slurm_job_is_shown(site: Site, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that releases a held job."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site))
    state = states.State("small-0a1b2c", states.STARTING, attempt=1, attempts=(states.Attempt(1),), since=1000.0)
    slurm.put("PENDING")
    said = []
    for reason in ("Resources", "JobHeldAdmin"):
        slurm.set_state(100, "PENDING", reason=reason)
        seen = SlurmTarget(folder.job(), folder).observe(state)
        after = restart_policy.evaluate(folder.job(), state, seen, Clock(9000.0)).state
        said.append((after.phase, after.reason))

    assert said == [
        ("starting", "Slurm job 100 is PENDING (Resources)"),
        ("starting", "Slurm job 100 is PENDING (JobHeldAdmin); to release it: scontrol release 100"),
    ]


def test_a_silent_controller_changes_nothing(site: Site, slurm: SlurmStandIn) -> None:
    """The job continues, and is not submitted twice."""
    folder = start(site, slurm)
    until(lambda: len(steps(folder)) >= 2)
    for name in ("squeue", "sacct", "sinfo"):
        break_command(slurm, name)
    until(lambda: len(steps(folder)) >= 12)
    assert folder.state().phase == "running"  # type: ignore[union-attr]
    for name in ("squeue", "sacct", "sinfo"):
        break_command(slurm, name, broken=False)

    assert ended(site) == 0
    assert len(slurm.jobs()) == 1
    assert folder.state().attempt == 1  # type: ignore[union-attr]


def test_a_forgotten_job_is_known_by_its_records(site: Site, slurm: SlurmStandIn) -> None:
    """Slurm forgets jobs after MinJobAge, and not every site has accounting."""
    folder = start(site, slurm, words=["10", "0.1"], policy=CALM)
    until(lambda: len(steps(folder)) >= 2)
    site.kill_watcher()
    until(lambda: len(steps(folder)) >= 10)
    (slurm.folder / "forgotten").touch()
    break_command(slurm, "sacct")
    site.watch(folder, PATH=slurm.path)

    assert ended(site) == 0
    assert folder.state().phase == "done"  # type: ignore[union-attr]
    assert len(slurm.jobs()) == 1


def test_a_cancelled_job_writes_its_checkpoint_first(site: Site, slurm: SlurmStandIn) -> None:
    """The launchers get SIGTERM once."""
    folder = start(site, slurm, words=["500", "0.1"], policy=CALM)
    until(lambda: len(steps(folder)) >= 2)
    folder.request(folders.CANCEL)

    assert ended(site) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.checkpoint) == ("cancelled", state.step)
    assert [words[1] for words in slurm.calls("scancel")] == ["--signal=TERM"]


def test_a_job_cancelled_in_slurm_stays_cancelled(site: Site, slurm: SlurmStandIn) -> None:
    """The watcher does not restart it."""
    folder = start(site, slurm, words=["500", "0.1"], policy=CALM)
    until(lambda: len(steps(folder)) >= 2)
    number = slurm.jobs()[0]["id"]
    subprocess.run([f"{slurm.folder}/bin/scancel", str(number)], check=True, timeout=120)

    assert ended(site) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, len(slurm.jobs())) == ("cancelled", 1)
    assert "not by a request" in state.reason


def test_a_submitted_attempt_is_found_by_its_name(site: Site, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the watcher was killed between sbatch and its note, the job is not submitted twice. No answer proves nothing."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site, words=["3", "0.05"]))
    target = SlurmTarget(folder.job(), folder)
    state = states.State("small-0a1b2c", phase=states.STARTING, attempt=1, attempts=(states.Attempt(1),))
    states.save(folder.state_file, state)
    break_command(slurm, "squeue")
    target.start(state)
    assert slurm.jobs() == []
    assert "squeue ended with exit code 1" in target.refused
    break_command(slurm, "squeue", broken=False)
    for _ in range(3):
        target.start(state)
        target = SlurmTarget(folder.job(), folder)

    assert len(slurm.jobs()) == 1


def test_hosts_are_left_out_only_as_long_as_enough_remain(site: Site, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm refuses a job that can never run: the list is trimmed to what the partition allows."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site, nodes=2))
    slurm.nodes(n3="down*")
    state = states.State("small-0a1b2c", excluded=tuple(states.Excluded(f"n{number}", number, "x", "y") for number in (1, 3)))
    hardware = replace(state, excluded=(states.Excluded("n1", 1, "gpu_lost", "y", hardware=True),))
    candidates = SlurmTarget(folder.job(), folder).candidates()

    assert [item.host for item in choose(folder.job(), state, candidates).excluded] == ["n3"]
    assert choose(folder.job(), hardware, candidates).returned == ("n1",)
    assert json.loads(folder.job_file.read_text())["nodes"] == 2


EIGHT, FOUR = "64|gpu:h200:8(S:0-1)", "32|gpu:4"
WHOLE = ["--exclusive", "--mem=0"]


@pytest.mark.parametrize(
    ("sizes", "changes", "options", "expected"),
    [
        ({"n1": EIGHT, "n2": EIGHT}, {"gpus_per_node": 8}, [], WHOLE),
        ({"n1": EIGHT, "n2": FOUR}, {"gpus_per_node": 8}, [], WHOLE),  # None of the smaller nodes.
        ({"n1": EIGHT, "n2": FOUR}, {"gpus_per_node": 4}, [], []),  # The share of four of eight GPUs, from slurm.conf.
        ({"n1": "64|gpu:a:4,gpu:b:4,shard:64", "n2": FOUR}, {"gpus_per_node": 8}, [], WHOLE),
        ({"n1": "64|(null)", "n2": "64|(null)"}, {"gpus_per_node": 8}, [], []),  # Unknown.
        ({"n1": EIGHT, "n2": EIGHT, "n3": "128|gpu:16"}, {"gpus_per_node": 8}, [], WHOLE),  # In another partition.
        ({"n1": EIGHT, "n2": EIGHT}, {"gpus_per_node": 8}, ["--mem=100G"], WHOLE[:1]),
        ({"n1": EIGHT, "n2": EIGHT}, {"gpus_per_node": 8}, ["--cpus-per-gpu=4"], []),
        ({"n1": EIGHT, "n2": EIGHT}, {"gpus_per_node": 8}, ["--exclusive=user"], []),
        ({"n1": EIGHT, "n2": EIGHT}, {"gpus_per_node": 8}, ["-c16"], []),
        ({"n1": "64|(null)", "n2": "4|(null)"}, {"processes_per_node": 2}, [], ["--cpus-per-task=2"]),
        ({"n1": "64|(null)", "n2": "4|(null)"}, {"processes_per_node": 6}, [], ["--cpus-per-task=4"]),  # With more, it would never start.
        ({"n1": "1|(null)", "n2": "1|(null)"}, {"processes_per_node": 2}, [], []),
        ({"n1": "64|(null)", "n2": "64|(null)"}, {"processes_per_node": 1}, [], []),
    ],
)
def test_a_job_gets_processors_and_memory_to_its_gpus(  # noqa: PLR0917 - a table
    site: Site,
    slurm: SlurmStandIn,
    monkeypatch: pytest.MonkeyPatch,
    sizes: dict[str, str],
    changes: dict[str, Any],
    options: list[str],
    expected: list[str],
) -> None:
    """A task per node gets one processor and a share of memory by default; the user's own options stay."""
    monkeypatch.setenv("PATH", slurm.path)
    slurm.sizes(**sizes)
    slurm.partitions(**{"gpu*": ["n1", "n2"], "big": ["n3"]})
    folder = site.submit(job(site, slurm={"partition": "gpu", "options": options}, words=["1", "0"], **changes))
    SlurmTarget(folder.job(), folder).start(states.State("small-0a1b2c", phase=states.STARTING, attempt=1, attempts=(states.Attempt(1),)))
    (words,) = slurm.calls("sbatch")
    stated = [word for word in words if word.startswith(("--exclusive", "--mem", "--cpus-per", "-c"))]

    assert [word for word in stated if word not in options] == expected


# One partition without the spare node, one with the spare and all others, and a foreign one.
SPARES = {"main*": ["n1", "n2"], "spare": ["n1", "n2", "n3"], "debug": ["n4"]}


@pytest.mark.parametrize(
    ("down", "excluded", "partition", "expected"),
    [
        ((), [], "", (False, [])),  # Enough without it.
        ((), ["n1"], "", (True, ["n1"])),
        (("n1",), [], "", (True, [])),
        (("n3",), ["n1"], "", (False, [])),  # The spare node is lost as well, so the job uses the remaining nodes.
        ((), ["n1"], "main", (False, [])),  # A job with an explicit partition uses its nodes.
    ],
)
def test_a_spare_node_is_taken_where_the_others_are_too_few(  # noqa: PLR0917 - the cases
    site: Site,
    slurm: SlurmStandIn,
    monkeypatch: pytest.MonkeyPatch,
    down: tuple[str, ...],
    excluded: list[str],
    partition: str,
    expected: tuple[bool, list[str]],
) -> None:
    """Nodes of other partitions never count: Slurm would refuse a job that leaves out the last ones of its own."""
    monkeypatch.setenv("PATH", slurm.path)
    slurm.nodes(n4="idle", **dict.fromkeys(down, "down*"))
    slurm.partitions(**SPARES)
    folder = site.submit({**job(site, nodes=2), "slurm": {"partition": partition, "options": []}})
    out = tuple(states.Excluded(name, number, "x", "y") for number, name in enumerate(excluded))
    found = choose(folder.job(), states.State("small-0a1b2c", excluded=out), SlurmTarget(folder.job(), folder).candidates())

    assert (found.spares, [item.host for item in found.excluded]) == expected


def test_a_job_on_spare_nodes_goes_to_their_partition(site: Site, slurm: SlurmStandIn) -> None:
    """After the loss of a node the spare one replaces it, and Slurm accepts every start."""
    slurm.partitions(**{"main*": ["n1"], "spare": ["n1", "n3"]})
    out = [{"host": "n1", "reason": "is quarantined"}]
    folder = site.submit({**job(site, words=["3", "0.05"]), "slurm": {"partition": "", "options": []}, "left_out": out})

    assert site.watch(folder, PATH=slurm.path).wait(90) == 0
    assert [one["nodes"] for one in slurm.jobs()] == [["n3"]]
    assert {"--partition=spare", "--exclude=n1"} <= set(slurm.calls("sbatch")[0])
