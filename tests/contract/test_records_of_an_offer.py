"""The records behind the hosts of a job: the real output of each producer is read by the real consumer."""

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


def looked(state: Path) -> Answer:
    """Return the answer of a host whose /var/lib/primus is this folder."""
    text = PROGRAM.read_text(encoding="utf-8")
    assert text.count('Path("/var/lib/primus")') == 1
    argv = [sys.executable, "-I", "-c", text.replace("/var/lib/primus", str(state))]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return Answer(state.name, exit_code=0, stdout=done.stdout)


def quarantine(path: Path, host: str, owner: str, reason: str) -> None:
    """Write a record as `node quarantine` does."""
    record = load_filters("quarantine").quarantine_record({host: {"now": 1000.0, "health": HEALTHY}}, host, owner, reason)
    load_role_module("quarantine", "quarantine_record").write_record(path, record)


def test_a_record_of_any_owner_keeps_a_host_out(tmp_path: Path) -> None:
    """A person's, the bench's for a new host, and one that only a controller has; other hosts are in service."""
    quarantine(tmp_path / "gpu1/quarantine.json", "gpu1", "ada", "ECC errors")
    quarantine(tmp_path / "gpu2/quarantine.json", "gpu2", PENDING["owner"], PENDING["reason"])
    quarantine(tmp_path / "ctl/quarantine/gpu3.json", "gpu3", "bob", "moved")
    hosts = ["gpu1", "gpu2", "gpu3", "gpu4"]
    answers = [*(looked(tmp_path / name) for name in ("ctl", "gpu1", "gpu2", "gpu4")), Answer("gpu3", cause="timeout", detail="silent")]
    out = unavailable_hosts(read_services(answers, hosts))

    assert {host: (one.reason, one.known) for host, one in out.items()} == {
        "gpu1": ("is quarantined by ada (ECC errors)", True),
        "gpu2": ("is quarantined by primus-bench (bench pending)", True),
        "gpu3": ("is quarantined by bob (moved)", True),
    }


@pytest.mark.parametrize("text", ["", "{torn", "[]", "{}", "null", "7", '{"owner": "ada", "reason": "x"}', '{"owner": 1, "time": "soon"}'])
def test_a_host_with_an_unreadable_record_is_left_out(tmp_path: Path, text: str) -> None:
    """By the submission and by the watcher; a complete copy on a controller names the owner."""
    (tmp_path / "gpu1").mkdir()
    (tmp_path / "gpu1/quarantine.json").write_text(text)
    alone = unavailable_hosts(read_services([looked(tmp_path / "gpu1")], ["gpu1"]))
    quarantine(tmp_path / "ctl/quarantine/gpu1.json", "gpu1", "ada", "ECC errors")
    told = unavailable_hosts(read_services([looked(tmp_path / "gpu1"), looked(tmp_path / "ctl")], ["gpu1"]))

    assert not alone["gpu1"].known
    assert f"{tmp_path}/gpu1/quarantine.json cannot be read" in alone["gpu1"].reason
    assert (told["gpu1"].reason, told["gpu1"].known) == ("is quarantined by ada (ECC errors)", True)
    assert _quarantine(tmp_path / "gpu1/quarantine.json").startswith("in quarantine")


def bench(folder: Path, fleet: Fleet, hosts: list[str], *, now: float) -> None:
    """Evaluate hosts, and write the reports as the role `bench` does."""
    results = [fleet.measure(host, started=now) for host in hosts]
    evaluation = evaluate_results(results, floors=Floors(()), history=History())
    gate = GateResult((), None)
    run = build_report(cluster="lab", tier="quick", now=now, hosts={}, evaluation=evaluation, gate=gate, history=History())
    BenchStore(folder).save_report(report_files(run), now=now)


def test_the_reports_of_benches_order_the_hosts(tmp_path: Path) -> None:
    """Slow hosts come last, after the one without a measurement; a host that is benched again has its newest value."""
    fleet = Fleet(random.Random(4), 12, bad=2, slowdown=0.3, sigma=0.002)  # noqa: S311 - made-up measurements
    bench(tmp_path, fleet, fleet.names[:11], now=1_800_000_000.0)
    slow = [host for host in fleet.names if host in fleet.bad]
    good = [host for host in fleet.names[:11] if host not in fleet.bad]
    first = order_hosts(fleet.names, host_speeds(newest_values(map(_read, BenchStore(tmp_path).reports()), fleet.names)))
    fleet._speed[slow[0]] = 100.0
    bench(tmp_path, fleet, [slow[0]], now=1_800_000_100.0)
    mended = order_hosts(fleet.names, host_speeds(newest_values(map(_read, BenchStore(tmp_path).reports()), fleet.names)))

    assert fleet.names[11] not in fleet.bad
    assert list(first[:10]) == [*good, fleet.names[11]]
    assert set(first[10:]) == fleet.bad
    assert mended[-2:] == (fleet.names[11], slow[1])


def _read(folder: Path) -> BenchRun:
    return read_run(folder / "bench.json")


@pytest.mark.parametrize("target", ["direct", "slurm"])
def test_the_watcher_uses_no_host_that_the_submission_left_out(tmp_path: Path, target: str) -> None:
    """The spare replaces the quarantined host in the first attempt."""
    names = ["gpu1", "gpu2", "gpu3"]
    quarantine(tmp_path / "gpu1/quarantine.json", "gpu1", "ada", "ECC errors")
    out = unavailable_hosts(read_services([looked(tmp_path / name) for name in names], names))
    offer = select_hosts(["gpu1", "gpu2"], ["gpu3"], nodes=2, unavailable=out, speeds={})
    defaults = yaml.safe_load((content.roles_dir() / "workload/defaults/main.yml").read_text(encoding="utf-8"))
    found = {"workload_order": [*offer.hosts, *offer.spares], "workload_left_out": [one.to_json() for one in offer.left_out]}
    job = {**defaults, **found, "workload_name": "try", "workload_user": "ada", "workload_target": target, "workload_nodes": 2}
    groups = {"primus_watch": ["ctl"], "workload_node": names, "spare": ["gpu3"]}
    document = load_filters("workload").document(job, groups, {name: {"ansible_host": name} for name in names})
    read = read_job(json.dumps(document), origin="job.json")
    hosts = [(host, False) for host in read.direct.hosts] + [(host, True) for host in read.direct.spares]
    candidates = Candidates(tuple(Candidate(host, answers=True, spare=spare) for host, spare in hosts), chosen_by_target=target == "slurm")
    choice = choose(read, restart_policy.initial_state(read, 1000.0), candidates)

    excluded = restart_policy.initial_state(read, 1000.0).excluded

    assert [(one.host, one.reason) for one in excluded] == [("gpu1", "is quarantined by ada (ECC errors)")]
    assert [host.name for host in choice.hosts] == (["gpu2", "gpu3"] if target == "direct" else [])
