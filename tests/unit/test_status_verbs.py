"""The verb `status`: the state of each host, its last full apply, proof and drift."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from primus_bootstrap.cli import status_verbs
from primus_bootstrap.cli.main import app
from primus_bootstrap.core.verdicts import Verdict
from primus_bootstrap.engine.events import Event, HostResult, PhaseFinished, PhaseStarted, Recap, RunFinished, RunStarted, VerdictFound
from primus_bootstrap.engine.host_records import HostRecord, RunMark, host_records
from primus_bootstrap.engine.host_states import host_state
from primus_bootstrap.engine.journal import Journal
from primus_bootstrap.engine.lock import cluster_lock
from primus_bootstrap.engine.report import Tally, report_text
from primus_bootstrap.engine.state_folder import RunFolder, jobs_dir, runs_dir
from primus_bootstrap.fleet.messages import Answer
from primus_bootstrap.fleet.service import Quarantine, Service
from primus_bootstrap.inventory.snapshot import file_sums

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("n1", "n2")
ANSWERED = Answer("n1", exit_code=0)
HEALTHY = Service("n1", answered=True, health="pass", slurm="idle")
APPLIED = RunMark("r1", "apply", 100.0)
KNOWN = HostRecord("n1", applied=APPLIED, changed=APPLIED, proven=APPLIED)


def failed(host: str, phase: str = "storage") -> HostResult:
    """Return a failed task."""
    return HostResult(host, phase, "redis", "Install Redis", "x.yml:1", "failed", message="disk full\nmore")


def write_run(
    state_dir: Path,
    day: int,
    *events: Event,
    verb: str = "apply",
    complete: bool = True,
    files: dict[str, str] | None = None,
    exit_code: int = 0,
) -> str:
    """Write a run of `storage` and `verify` that ended at 1000 s times the day."""
    run = f"202601{day:02}T000000Z-aaaa"
    folder = RunFolder(runs_dir(state_dir) / run)
    folder.path.mkdir(parents=True)
    steps = (("storage", HOSTS), ("verify", HOSTS))
    folder.plan.write_text(json.dumps({"steps": [{"phase": phase, "hosts": hosts} for phase, hosts in steps]}), encoding="utf-8")
    folder.inputs.write_text(json.dumps({"complete": complete, "files": files or {"": "a"}}), encoding="utf-8")
    lost = tuple(event.host for event in events if isinstance(event, HostResult) and event.status == "failed")
    tally, journal = Tally(), Journal(folder.journal)
    for event in (
        RunStarted(run, verb, "blue", 1.0, steps),
        PhaseStarted("storage", 1, 2, HOSTS, 2.0),
        *events,
        PhaseFinished(
            "storage", 5.0, tuple((event.host, 0, 1, 0) for event in events if isinstance(event, HostResult) and event.status == "changed")
        ),
        PhaseStarted("verify", 2, 2, HOSTS, 7.0),
        PhaseFinished("verify", 5.0, ()),
        Recap(lost, ()),
        RunFinished(1000.0 * day, exit_code),
    ):
        tally.add(event)
        journal.write(event)
    journal.close()
    folder.report.write_text(report_text(tally.report()), encoding="utf-8")
    return run


def test_only_a_complete_apply_is_a_full_one(tmp_path: Path) -> None:
    """A run of some phases, a failed run and other verbs leave the time of the last full apply."""
    full = write_run(tmp_path, 1)
    write_run(tmp_path, 2, complete=False)
    write_run(tmp_path, 3, failed("n1"), exit_code=4)
    write_run(tmp_path, 4, verb="workload submit")
    write_run(tmp_path, 5, failed("n1"), verb="node quarantine", exit_code=4)

    records = host_records(tmp_path, HOSTS)

    assert records["n1"].applied == RunMark(full, "apply", 1000.0)
    assert records["n2"].applied == RunMark("20260103T000000Z-aaaa", "apply", 3000.0)


def test_the_problem_of_the_last_change_stays_until_the_next_one(tmp_path: Path) -> None:
    """A proof and a mistyped submission do not hide it; a successful apply does."""
    write_run(tmp_path, 1, failed("n1"), exit_code=4)
    write_run(tmp_path, 2, verb="verify")
    write_run(tmp_path, 3, failed("n2"), verb="workload submit", exit_code=4)
    before = host_records(tmp_path, HOSTS)
    write_run(tmp_path, 4)
    after = host_records(tmp_path, HOSTS)

    assert (before["n1"].changed or APPLIED).problem == "apply failed in redis: disk full"
    assert (before["n2"].changed or APPLIED).problem == ""
    assert (after["n1"].changed or APPLIED).problem == ""


def test_an_added_node_is_fully_applied_and_the_others_are_not(tmp_path: Path) -> None:
    """Of the other hosts, `node add` configures a part only. A reset ends both."""
    write_run(tmp_path, 1, verb="node add n2")
    added = host_records(tmp_path, HOSTS)
    write_run(tmp_path, 2, verb="reset")
    reset = host_records(tmp_path, HOSTS)

    assert added["n1"].applied is None
    assert (added["n2"].applied or APPLIED).verb == "node add n2"
    assert reset["n2"].applied is None
    assert reset["n2"].proven is None


def test_a_proof_is_a_run_that_verified_the_host(tmp_path: Path) -> None:
    """It has the first check that failed, and the first that is unknown, which is no failure."""
    write_run(tmp_path, 1)
    checks = [
        VerdictFound("verify", Verdict("redis.answers", "n1", "unknown", reason="no answer")),
        VerdictFound("verify", Verdict("slurm.job", "n1", "fail")),
        VerdictFound("verify", Verdict("slurm.job", "n2", "unknown")),
    ]
    write_run(tmp_path, 2, *checks, verb="verify")

    records = host_records(tmp_path, HOSTS)

    run = "20260102T000000Z-aaaa"
    assert records["n1"].proven == RunMark(run, "verify", 2000.0, "slurm.job: fail", "redis.answers: no answer")
    assert records["n2"].proven == RunMark(run, "verify", 2000.0, "", "slurm.job: unknown")


def test_drift_is_what_the_last_complete_diff_found(tmp_path: Path) -> None:
    """Since the last full apply. A diff of some phases says nothing about the others."""
    change = HostResult("n1", "storage", "redis", "Write the configuration", "x.yml:1", "changed")
    write_run(tmp_path, 1)
    write_run(tmp_path, 2, change, verb="diff")
    write_run(tmp_path, 3, verb="diff", complete=False)
    found = host_records(tmp_path, HOSTS)
    write_run(tmp_path, 4, files={"": "b", "group_vars/all.yml": "c"})
    later = host_records(tmp_path, HOSTS)["n1"]

    assert [found[host].drift for host in HOSTS] == [1, 0]
    assert later.drift is None
    assert later.edited({"": "b", "group_vars/all.yml": "d"}) == ("group_vars/all.yml",)
    assert later.edited({"": "b", "group_vars/all.yml": "c"}) == ()


@pytest.mark.parametrize(
    ("answer", "service", "record", "state", "reason", "fix"),
    [
        ({}, {}, {}, "READY", "", ""),
        ({}, {"slurm": "mixed~"}, {}, "READY", "", ""),
        ({}, {"health": ""}, {}, "READY", "", ""),
        ({}, {"health": "fail", "health_reason": "ECC"}, {}, "DEGRADED", "health: ECC", "verify hosts.yaml --limit n1"),
        ({}, {"slurm": "drained", "slurm_reason": "fan"}, {}, "DEGRADED", "Slurm: drained: fan", "state=resume"),
        ({}, {"slurm": "idle*"}, {}, "DEGRADED", "Slurm: idle*", "state=resume"),
        ({}, {"kubernetes": "not ready", "kubernetes_reason": "PLEG"}, {}, "DEGRADED", "Kubernetes: not ready: PLEG", "describe node n1"),
        ({}, {}, {"changed": replace(APPLIED, problem="apply failed")}, "DEGRADED", "apply failed", "report hosts.yaml --run r1"),
        ({}, {}, {"proven": replace(APPLIED, problem="redis.answers: no")}, "DEGRADED", "redis.answers: no", "report hosts.yaml --run r1"),
        ({}, {}, {"proven": replace(APPLIED, unclear="slurm.job: slow")}, "UNKNOWN", "slurm.job: slow", "verify hosts.yaml --limit n1"),
        ({}, {"quarantine": Quarantine("ada", "noisy fan", 5.0)}, {}, "QUARANTINED", "ada: noisy fan", "node release hosts.yaml n1"),
        ({"exit_code": None, "cause": "timeout", "detail": "no answer"}, {"answered": False}, {}, "UNREACHABLE", "no answer", "is up"),
        (
            {"exit_code": None, "cause": "key_file", "detail": "no key"},
            {"answered": False, "health_reason": "no key"},
            {},
            "UNKNOWN",
            "no key",
            "key",
        ),
        ({}, {"health": "unknown", "health_reason": "silent"}, {}, "UNKNOWN", "health: silent", "verify hosts.yaml --limit n1"),
        ({}, {"kubernetes": "unknown", "kubernetes_reason": "no API"}, {}, "UNKNOWN", "Kubernetes: no API", "verify"),
        ({}, {}, {"applied": None}, "UNKNOWN", "no full apply has succeeded here", "primus-bootstrap apply hosts.yaml"),
    ],
)
def test_the_state_has_a_reason_and_a_fix(
    answer: dict[str, Any], service: dict[str, Any], record: dict[str, Any], *, state: str, reason: str, fix: str
) -> None:
    """What is known to be wrong takes precedence over what is unknown."""
    found = host_state(replace(ANSWERED, **answer), replace(HEALTHY, **service), replace(KNOWN, **record))

    assert (found.state, found.reason) == (state, reason)
    assert fix in found.fix
    assert bool(found.fix) is (state != "READY")


def test_a_quarantined_host_that_does_not_answer_is_both() -> None:
    """Its quarantine is known from Slurm's controllers."""
    silent = Answer("n1", cause="timeout", detail="no answer")
    found = host_state(silent, replace(HEALTHY, answered=False, quarantine=Quarantine("ada", "fan", 5.0)), KNOWN)

    assert (found.state, found.reason) == ("QUARANTINED", "ada: fan; the host does not answer")


@pytest.mark.parametrize(
    ("reason", "applying", "fix"), [("bench pending", True, "wait"), ("bench pending", False, "repair"), ("fan", True, "repair")]
)
def test_a_host_that_waits_for_its_bench_needs_no_repair(reason: str, applying: bool, fix: str) -> None:  # noqa: FBT001 (a table's column)
    """The run that is going on measures it; a quarantine for another reason stays."""
    found = host_state(ANSWERED, replace(HEALTHY, quarantine=Quarantine("primus-bench", reason, 5.0)), KNOWN, applying=applying)

    assert (found.state, found.fix.startswith(fix)) == ("QUARANTINED", True)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hosts.yaml with two hosts: the first answers, the second does not."""
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "all:\n  vars: {cluster_name: blue}\n  hosts: {n1: {ansible_host: 10.0.0.1}, n2: {ansible_host: 10.0.0.2}}\n"
        "  children: {gpu_node: {hosts: {n2: }}, container_host: {hosts: {n1: }}}\n"
    )

    def read(_cluster: object, _hosts: object, *, timeout_s: float) -> list[tuple[Answer, Service]]:
        silent = Answer("n2", cause="timeout", detail=f"no answer within {timeout_s:.0f} s")
        return [(ANSWERED, HEALTHY), (silent, Service("n2", answered=False, health_reason=silent.detail))]

    monkeypatch.setattr(status_verbs, "read_all_states", read)
    return path


def output(*words: object) -> str:
    """Return the output of a verb, which must succeed."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_status_shows_states_ages_drift_and_fixes(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was edited after the last full apply is drift."""
    monkeypatch.setattr(time, "time", lambda: 1000.0 + 7200.0)
    state_dir = hosts.parent / ".primus" / "blue"
    write_run(state_dir, 1, files=file_sums(hosts))
    before = output("status", hosts)
    hosts.write_text(hosts.read_text() + "# a comment\n")
    lines = output("status", hosts).splitlines()

    assert "edited" not in before
    assert lines[:3] == [
        "host  address   state        last full apply  last proof  drift              why",
        "n1    10.0.0.1  READY        2h00m ago        2h00m ago   hosts.yaml edited",
        "n2    10.0.0.2  UNREACHABLE  2h00m ago        2h00m ago   hosts.yaml edited  no answer within 15 s",
    ]
    assert lines[3:6] == ["", "n2", "  fix: check that the host is up and not overloaded, or raise the limit with --timeout"]
    assert "blue: 1 READY, 1 UNREACHABLE" in lines
    assert lines[-1].startswith("last change: apply blue: 2 unchanged")


def test_a_lost_host_of_a_lab_is_healed(hosts: Path) -> None:
    """Its fix is the command that starts it again, not a look at firewalls."""
    lab = hosts.parent / ".primus" / "blue"
    lab.mkdir(parents=True)
    (lab / "lab.json").write_text("{}")

    assert f"fix: primus-bootstrap lab fault heal n2 --name blue --dir {hosts.parent}" in output("status", hosts)


def test_status_during_the_first_apply(hosts: Path) -> None:
    """The hosts wait for the end of the run, and the line below names it."""
    with cluster_lock(hosts.parent / ".primus" / "blue", verb="apply", run="20260101T000000Z-aaaa"):
        text = output("status", hosts)

    assert "UNKNOWN" in text
    assert "fix: wait until the run has ended" in text
    assert "running: apply by " in text
    assert "last change" not in text


def test_status_as_json(hosts: Path) -> None:
    """Every column, with the run that it comes from."""
    run = write_run(hosts.parent / ".primus" / "blue", 1, files=file_sums(hosts))
    data = json.loads(output("status", hosts, "--json"))

    mark = {"run": run, "verb": "apply", "at": 1000.0, "problem": "", "unclear": ""}
    assert {name: data[name] for name in ("schema", "cluster", "running", "last_change")} == {
        "schema": "primus.status/1", "cluster": "blue", "running": None, "last_change": run,
    }  # fmt: skip
    assert data["hosts"][0] == {
        "host": "n1", "state": "READY", "reason": "", "fix": "", "address": "10.0.0.1",
        "applied": mark, "proven": mark, "drift": {"files": [], "changes": None},
    }  # fmt: skip


def test_a_submission_is_listed_but_is_no_change(hosts: Path) -> None:
    """Its run is in a folder of its own; `runs` and `report` find it."""
    state_dir = hosts.parent / ".primus" / "blue"
    run = write_run(jobs_dir(state_dir), 2, failed("n1"), verb="workload submit", exit_code=4)
    write_run(state_dir, 1)

    assert [item["run"] for item in json.loads(output("runs", hosts, "--json"))] == [run, "20260101T000000Z-aaaa"]
    assert json.loads(output("report", hosts, "--run", run, "--json"))["verb"] == "workload submit"
    assert json.loads(output("status", hosts, "--json"))["last_change"] == "20260101T000000Z-aaaa"
