"""The host selection of jobs reads the real quarantine records and bench reports."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.bench.judging.floors import Floors
from primus_bootstrap.bench.judging.verdicts import evaluate_results
from primus_bootstrap.bench.placement.host_order import host_speeds, newest_values, order_hosts
from primus_bootstrap.bench.placement.host_selection import select_hosts, unavailable_hosts
from primus_bootstrap.bench.quarantine.decisions import GateResult
from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.report.build import build_report, report_files
from primus_bootstrap.bench.results.history import History
from primus_bootstrap.bench.results.store import BenchStore
from primus_bootstrap.fleet.messages import Answer
from primus_bootstrap.fleet.service import read_services
from primus_bootstrap.inventory import job_rules
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.launch.watch import restart_policy
from primus_bootstrap.launch.watch.host_choice import choose
from primus_bootstrap.launch.watch.job_spec import read_job
from primus_bootstrap.launch.watch.node_agent import _quarantine
from primus_bootstrap.launch.watch.observation import Candidate, Candidates
from tests.unit.bench_fleet_rig import Fleet
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.bench.report.bench_report import BenchRun

PROGRAM = content.roles_dir() / "quarantine/files/look_host.py"
PENDING = yaml.safe_load((content.roles_dir() / "bench/vars/main.yml").read_text(encoding="utf-8"))["_bench_pending"]
HEALTHY = {"verdict": "pass", "checks": []}


def host_answer(state: Path) -> Answer:
    """Run look_host.py with this folder as /var/lib/primus; return the answer."""
    text = PROGRAM.read_text(encoding="utf-8")
    assert text.count('Path("/var/lib/primus")') == 1
    argv = [sys.executable, "-I", "-c", text.replace("/var/lib/primus", str(state))]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return Answer(state.name, exit_code=0, stdout=done.stdout)


def quarantine(path: Path, host: str, owner: str, reason: str) -> None:
    """Write a record like `node quarantine`."""
    record = load_filters("quarantine").quarantine_record({host: {"now": 1000.0, "health": HEALTHY}}, host, owner, reason)
    load_role_module("quarantine", "quarantine_record").write_record(path, record)


def test_a_record_of_any_owner_excludes_a_host(tmp_path: Path) -> None:
    """Records of a person, of the bench for a new host, and on a controller only exclude hosts. Other hosts are in service."""
    quarantine(tmp_path / "gpu1/quarantine.json", "gpu1", "ada", "ECC errors")
    quarantine(tmp_path / "gpu2/quarantine.json", "gpu2", PENDING["owner"], PENDING["reason"])
    quarantine(tmp_path / "ctl/quarantine/gpu3.json", "gpu3", "bob", "moved")
    hosts = ["gpu1", "gpu2", "gpu3", "gpu4"]
    answers = [
        *(host_answer(tmp_path / name) for name in ("ctl", "gpu1", "gpu2", "gpu4")),
        Answer("gpu3", cause="timeout", detail="silent"),
    ]
    out = unavailable_hosts(read_services(answers, hosts))

    assert {host: (item.reason, item.known) for host, item in out.items()} == {
        "gpu1": ("is quarantined by ada (ECC errors)", True),
        "gpu2": ("is quarantined by primus-bench (bench pending)", True),
        "gpu3": ("is quarantined by bob (moved)", True),
    }


@pytest.mark.parametrize("text", ["", "{torn", "[]", "{}", "null", "7", '{"owner": "ada", "reason": "x"}', '{"owner": 1, "time": "soon"}'])
def test_a_host_with_an_unreadable_record_is_excluded(tmp_path: Path, text: str) -> None:
    """The submission and the watcher exclude it. A complete copy on a controller names the owner."""
    (tmp_path / "gpu1").mkdir()
    (tmp_path / "gpu1/quarantine.json").write_text(text)
    alone = unavailable_hosts(read_services([host_answer(tmp_path / "gpu1")], ["gpu1"]))
    quarantine(tmp_path / "ctl/quarantine/gpu1.json", "gpu1", "ada", "ECC errors")
    from_controller = unavailable_hosts(read_services([host_answer(tmp_path / "gpu1"), host_answer(tmp_path / "ctl")], ["gpu1"]))

    assert not alone["gpu1"].known
    assert f"{tmp_path}/gpu1/quarantine.json cannot be read" in alone["gpu1"].reason
    assert (from_controller["gpu1"].reason, from_controller["gpu1"].known) == ("is quarantined by ada (ECC errors)", True)
    assert _quarantine(tmp_path / "gpu1/quarantine.json").startswith("in quarantine")


def bench(folder: Path, fleet: Fleet, hosts: list[str], *, now: float) -> None:
    """Evaluate hosts and write the reports like the role `bench`."""
    results = [fleet.measure(host, started=now) for host in hosts]
    evaluation = evaluate_results(results, floors=Floors(), history=History())
    gate = GateResult((), None)
    run = build_report(cluster="lab", tier="quick", now=now, hosts={}, evaluation=evaluation, gate=gate, history=History())
    BenchStore(folder).save_report(report_files(run), now=now)


def test_bench_reports_order_the_hosts(tmp_path: Path) -> None:
    """Slow hosts are last, after hosts without a measurement. A repeated bench replaces the value of a host."""
    fleet = Fleet(random.Random(4), 12, bad=2, slowdown=0.3, sigma=0.002)  # noqa: S311 - no secret
    bench(tmp_path, fleet, fleet.names[:11], now=1_800_000_000.0)
    slow = [host for host in fleet.names if host in fleet.bad]
    good = [host for host in fleet.names[:11] if host not in fleet.bad]
    first = order_hosts(fleet.names, host_speeds(newest_values(map(_read, BenchStore(tmp_path).reports()), fleet.names)))
    fleet._speed[slow[0]] = 100.0
    bench(tmp_path, fleet, [slow[0]], now=1_800_000_100.0)
    repaired = order_hosts(fleet.names, host_speeds(newest_values(map(_read, BenchStore(tmp_path).reports()), fleet.names)))

    assert fleet.names[11] not in fleet.bad
    assert list(first[:10]) == [*good, fleet.names[11]]
    assert set(first[10:]) == fleet.bad
    assert repaired[-2:] == (fleet.names[11], slow[1])


def _read(folder: Path) -> BenchRun:
    return read_run(folder / "bench.json")


@pytest.mark.parametrize("target", ["direct", "slurm"])
def test_the_watcher_uses_no_host_that_the_submission_excluded(tmp_path: Path, target: str) -> None:
    """A spare replaces the quarantined host in the first attempt."""
    names = ["gpu1", "gpu2", "gpu3"]
    quarantine(tmp_path / "gpu1/quarantine.json", "gpu1", "ada", "ECC errors")
    out = unavailable_hosts(read_services([host_answer(tmp_path / name) for name in names], names))
    selection = select_hosts(["gpu1", "gpu2"], ["gpu3"], nodes=2, unavailable=out, speeds={})
    defaults = yaml.safe_load((content.roles_dir() / "workload/defaults/main.yml").read_text(encoding="utf-8"))
    chosen = {
        "workload_host_order": [*selection.hosts, *selection.spares],
        "workload_excluded_hosts": [item.to_json() for item in selection.left_out],
    }
    job = {**defaults, **chosen, "workload_name": "try", "workload_user": "ada", "workload_target": target, "workload_nodes": 2}
    groups = {"primus_watch": ["ctl"], "workload_node": names, "spare": ["gpu3"]}
    document = job_rules.document(job, groups, {name: {"ansible_host": name} for name in names})
    spec = read_job(json.dumps(document), origin="job.json")
    hosts = [(host, False) for host in spec.direct.hosts] + [(host, True) for host in spec.direct.spares]
    candidates = Candidates(tuple(Candidate(host, answers=True, spare=spare) for host, spare in hosts), chosen_by_target=target == "slurm")
    choice = choose(spec, restart_policy.initial_state(spec, 1000.0), candidates)
    excluded = restart_policy.initial_state(spec, 1000.0).excluded

    assert [(item.host, item.reason) for item in excluded] == [("gpu1", "is quarantined by ada (ECC errors)")]
    assert [host.name for host in choice.hosts] == (["gpu2", "gpu3"] if target == "direct" else [])
