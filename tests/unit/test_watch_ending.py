"""primus_bootstrap.launch.watch.classification: the end of an attempt, with diagnoses of real failures."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap.launch.diagnose import causes, diagnosis
from primus_bootstrap.launch.diagnose.diagnosis import Diagnosis
from primus_bootstrap.launch.diagnose.hang import Suspect
from primus_bootstrap.launch.diagnose.rank_evidence import Evidence
from primus_bootstrap.launch.ranks import rank_log
from primus_bootstrap.launch.watch import classification, node_record
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.job_spec import Host, Job
from primus_bootstrap.launch.watch.job_state import Attempt, State
from primus_bootstrap.launch.watch.loop import Watcher
from primus_bootstrap.launch.watch.node_record import NodeRecord
from primus_bootstrap.launch.watch.targets.slurm import SlurmTarget

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "failures"
JOB = Job("a-000000", "a", "ada", "direct", 2, ("train",))
NODES = {"gpu001": "h1", "gpu002": "h2"}
NOTHING = Diagnosis("", 0)


def over(code: int | None, **changes: Any) -> State:
    """Return the state of an attempt that has ended."""
    hosts = (Host("h1", "a"), Host("h2", "b"))
    attempt = Attempt(1, ("h1", "h2"), exit_code=code)
    return replace(State("a-000000", phase=states.ENDED, attempt=1, hosts=hosts, attempts=(attempt,)), **changes)


def of(name: str, node: str = "gpu001", *suspects: str) -> Diagnosis:
    """Return a diagnosis with a cause of the catalogue."""
    cause = next(item for item in causes.catalogue() if item.name == name)
    return replace(
        NOTHING,
        cause=cause,
        evidence=(Evidence(cause, "a log", 1, "a line", None, node),),
        suspects=tuple(Suspect(number, host, "it stopped first") for number, host in enumerate(suspects)),
    )


def test_the_special_causes_are_in_the_catalogue() -> None:
    """A renamed cause would silently lose its special treatment."""
    known = {item.name for item in causes.catalogue()}

    assert known >= classification._OF_THE_HOST
    assert known >= classification._PASSING


@pytest.mark.parametrize(
    ("state", "found", "kind", "hosts"),
    [
        (over(0), NOTHING, classification.DONE, ()),
        (over(75), NOTHING, classification.UNFINISHED, ()),
        (over(75, stopping="failed"), NOTHING, classification.UNFINISHED, ()),
        (over(75, cancel=True, stopping="cancel"), NOTHING, classification.CANCELLED, ()),
        (over(1, verdict=observations.PREEMPTED), of("crash"), classification.UNFINISHED, ()),
        (over(None, verdict=observations.CANCELLED), NOTHING, classification.CANCELLED, ()),
        (over(1, lost=("h1",)), of("not_finite"), classification.NODE, ("h1",)),
        (over(0, lost=("h1",)), NOTHING, classification.NODE, ("h1",)),
        (over(1, lost=("h1", "h2")), NOTHING, classification.NODE, ()),
        (over(1, verdict=observations.NODE_FAIL), NOTHING, classification.OTHER, ()),
        (over(1), of("gpu_memory_error", "gpu002"), classification.NODE, ("h2",)),
        (over(1), of("gpu_missing", "gpu002"), classification.NODE, ("h2",)),
        (over(77), of("no_progress", "gpu001", "gpu002"), classification.NODE, ("h2",)),
        (over(77), of("no_progress", "gpu001", "gpu001", "gpu002"), classification.OTHER, ()),
        (over(77), of("no_progress", "gpu001"), classification.OTHER, ()),
        (over(137), of("host_out_of_memory"), classification.OTHER, ()),
        (over(76), of("not_finite"), classification.OWN, ()),
        (over(1), of("disk_full"), classification.OTHER, ()),
        (over(1), of("peer_lost"), classification.OTHER, ()),
        (over(76), NOTHING, classification.OWN, ()),
        (over(2), NOTHING, classification.OWN, ()),
        (over(None), NOTHING, classification.OTHER, ()),
        (over(139), NOTHING, classification.OTHER, ()),
        (over(143), NOTHING, classification.UNFINISHED, ()),
        (over(130, stopping="failed"), NOTHING, classification.UNFINISHED, ()),
        (over(143, stopping="no_progress", reason="no new step for 9 s"), NOTHING, classification.OTHER, ()),
        (over(143), of("gpu_missing", "gpu002"), classification.NODE, ("h2",)),
        (over(79), NOTHING, classification.OTHER, ()),
    ],
)
def test_the_most_reliable_source_classifies_the_end(state: State, found: Diagnosis, kind: str, hosts: tuple[str, ...]) -> None:
    """A request, then the target, the logs and the exit code. A host is excluded only if other hosts were healthy."""
    judged = classification.classify(JOB, state, found, NODES)

    assert (judged.kind, judged.hosts) == (kind, hosts)
    assert judged.reason


@pytest.mark.parametrize(("sample", "hosts"), [("no_progress-gpu", ("h2",)), ("no_progress-gpu_unknown", ())])
def test_the_host_of_a_hanging_gpu_is_excluded(tmp_path: Path, sample: str, hosts: tuple[str, ...]) -> None:
    """All ranks are in the same phase: the GPU that is behind counts. If none is, no host is excluded."""
    (tmp_path / "logs").mkdir()
    for path in (SAMPLES / sample).glob("*.log"):
        shutil.copy(path, tmp_path / "logs" / path.name)
    for rank, fields in yaml.safe_load((SAMPLES / sample / "ends.yml").read_text())["ranks"].items():
        data = {"schema": rank_log.SCHEMA, "rank": rank, "world_size": 4, "local_rank": rank % 2, "attempt": 0, "pid": 9, "started": 1.0}
        rank_log.record_path(tmp_path, rank).write_text(json.dumps({**data, **fields}))
    judged = classification.classify(JOB, over(77), diagnosis.diagnose(tmp_path), NODES)

    assert (judged.cause, judged.hosts) == ("no_progress", hosts)


def test_a_host_that_did_not_start_is_excluded_without_hardware_fault() -> None:
    """Its storage may be missing, or the account: the cause is unknown."""
    state = over(None, stopping=classification.STOP_NOT_STARTED, absent=("h2",), reason="it did not start within 60 s: h2: no such folder")
    both = replace(state, absent=("h1", "h2"))
    judged = classification.classify(JOB, state, of("rendezvous_failed"), NODES)

    assert (judged.kind, judged.cause, judged.hosts, judged.hardware) == (classification.NODE, "not_started", ("h2",), False)
    assert "no such folder" in judged.reason
    assert classification.classify(JOB, both, NOTHING, NODES).hosts == ()


@pytest.mark.parametrize(("stopping", "said"), [("", True), (classification.STOP_HANG, False)])
def test_the_note_of_a_launcher_is_the_reason(tmp_path: Path, stopping: str, said: bool) -> None:  # noqa: FBT001
    """Lost storage ends an attempt on every node, and the reason must say so. A requested stop has no such reason."""
    folder = folders.JobFolder(tmp_path)
    note = "the lease could not be read for 16 s"
    record = NodeRecord(0, "h1", "gpu001", "b", "", 1.0, 2.0, 79, note)
    folder.attempt(1).mkdir(parents=True)
    (folder.attempt(1) / "node-00000.json").write_text(json.dumps(asdict(record)))
    watcher = Watcher(JOB, folder, SlurmTarget(JOB, folder))
    state = over(79, stopping=stopping, watcher=watcher.leader.name)
    states.save(folder.state_file, state)

    assert (note in watcher._conclude(state).current.reason) == said


def test_only_hardware_faults_require_a_new_health_record() -> None:
    """A hang or a lost host is not a hardware fault."""
    assert classification.classify(JOB, over(1), of("gpu_lost"), NODES).hardware
    assert not classification.classify(JOB, over(1), of("gpu_missing"), NODES).hardware
    assert not classification.classify(JOB, over(1, lost=("h1",)), NOTHING, NODES).hardware


def test_the_only_host_of_a_job_is_excluded_too() -> None:
    """There are no other hosts to compare with."""
    alone = replace(over(1, lost=("h1",)), hosts=(Host("h1", "a"),))

    assert classification.classify(JOB, alone, NOTHING, NODES).hosts == ("h1",)


def test_the_logs_of_a_failure_lead_to_the_host(tmp_path: Path) -> None:
    """From the logs of a run to the name of the host in the job."""
    (tmp_path / "logs").mkdir()
    shutil.copy(SAMPLES / "port_in_use" / "launcher-00000.log", tmp_path / "logs")
    judged = classification.classify(JOB, over(1), diagnosis.diagnose(tmp_path), NODES)

    assert (judged.kind, judged.cause) == (classification.OTHER, "port_in_use")
    assert judged.fix


def test_no_host_is_excluded_if_it_is_unclear_which_end_of_a_connection_failed() -> None:
    """The host that reported it may be fine."""
    found = of("rdma_failed", "gpu002")

    assert classification.classify(JOB, over(1), found, NODES).hosts == ("h2",)
    assert classification.classify(JOB, over(1), replace(found, node_unclear=True), NODES).hosts == ()


@pytest.mark.parametrize(
    ("log", "reason", "fix"),
    [
        ("primus-cli: python3 has no torch\n  fix: set workload_venv\n", "python3 has no torch (exit code 3)", "set workload_venv"),
        ("primus-cli: python3 has no torch\n", "python3 has no torch (exit code 3)", "read the launchers' logs: attempts/1/"),
        ("some output\n", "a node cannot run it (exit code 3)", "read the launchers' logs: attempts/1/"),
    ],
    ids=["with a fix", "without a fix", "no error"],
)
def test_the_error_of_a_launcher_is_the_reason_with_its_fix(tmp_path: Path, log: str, reason: str, fix: str) -> None:
    """The user reads what the launcher printed, without looking for the log on a host."""
    (tmp_path / "node-00000.log").write_text(f"primus-cli: an earlier error\n  fix: nothing\n{log}" if "primus-cli" in log else log)

    outcome = classification.classify(JOB, over(3), NOTHING, NODES, launcher_error=node_record.last_error(tmp_path))

    assert (outcome.kind, outcome.reason) == (classification.OWN, reason)
    assert outcome.fix.startswith(fix)
