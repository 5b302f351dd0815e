"""Test benchmarks of several hosts: pairs and bisection with a slow host, a lost host, and a busy host."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.bench.quarantine.policy import SHIPPED
from tests.lab.lab_rig import ROOT, run_cli, wait_for
from tests.lab.workload_fixture import COMPUTE, VENV

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab
    from tests.lab.workload_rig import Training

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(3600)]

BAD = "node4"
GOOD = tuple(node for node in COMPUTE if node != BAD)
SMALL = {"collectives": ["all_reduce"], "smallest_kib": 1024, "largest_kib": 1024, "device": "cpu"}
SHORT = {"run": "collectives", "timeout_s": 60, "repeats": 7, "options": SMALL}
STEPS = [
    {"run": "preflight", "timeout_s": 120, "options": {"checks": ["host"]}},
    {**SHORT, "over": "pairs", "inside": 9, "across": 0},
    {**SHORT, "over": "fabric"},
]
JOB_UNIT = "primus-job-debug-1"


@pytest.fixture
def fabric(training: Training) -> Iterator[RunningLab]:
    """The cluster with a policy of short steps and torch, without quarantines afterwards."""
    lab = training.lab
    policy = yaml.safe_load(SHIPPED.read_text())
    policy["tiers"] = {"wide": {"meaning": "hosts together", "budget_s": 2400, "steps": STEPS}}
    # What a host of a lab shows of itself is not what is tested here.
    policy["checks"].insert(0, {"match": ["preflight_*"], "fail": "warn", "unknown": "warn", "why": "these hosts are no servers"})
    (lab.folder / "policy.yml").write_text(yaml.safe_dump(policy))
    variables = lab.folder / "group_vars/gpu_node.yml"
    variables.parent.mkdir(exist_ok=True)
    settings = {"bench_policy_file": str(lab.folder / "policy.yml"), "bench_tier": "wide", "bench_parallel_hosts": 1}
    variables.write_text(yaml.safe_dump({**settings, "primus_cli_settings": {"direct": {"venv": VENV}}}))
    done = lab.apply("--phase", "gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    yield lab
    lab.heal()
    variables.unlink()
    lab.apply("--phase", "gpu")
    run_cli("bench", str(lab.hosts_file), "--reset-breaker", "--confirm", lab.name)
    run_cli("bench", str(lab.hosts_file), "--tier", "checks", timeout_s=900)


def bench(lab: RunningLab) -> dict[str, Any]:
    """Run the verb and return its output."""
    done = run_cli("bench", str(lab.hosts_file), "--json", timeout_s=3000)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def outcomes(output: dict[str, Any], check: str) -> dict[str, str]:
    """Return the verdicts of a check by host."""
    return {one["host"]: one["verdict"] for one in output["verdicts"] if one["check"] == check and "," not in one["host"]}


def runs(lab: RunningLab) -> list[dict[str, Any]]:
    """Return the runs of the last bench."""
    newest = max(path for path in (lab.state_dir / "bench/runs").iterdir())
    return [json.loads(line) for line in (newest / "fabric.jsonl").read_text().splitlines()]


def test_healthy_hosts_pass(fabric: RunningLab) -> None:
    """Pairs and larger groups run with correct results, and no host fails."""
    output = bench(fabric)
    ran = runs(fabric)

    assert {len(one["hosts"]) for one in ran} >= {2, len(COMPUTE)}
    assert "pass" in {one["answer"] for one in ran}
    for check in ("fabric_pairs", "fabric_bisection"):
        assert outcomes(output, check).keys() == set(COMPUTE)
        assert "fail" not in outcomes(output, check).values()


def test_only_the_host_with_a_slow_network_is_suspected(fabric: RunningLab) -> None:
    """With 1 % of the bandwidth, bisection fails or suspects the host, and no other."""
    with fabric.slowed(BAD, 16):
        output = bench(fabric)

    assert outcomes(output, "fabric_bisection")[BAD] in ("fail", "unknown")
    assert outcomes(output, "fabric_pairs")[BAD] in ("fail", "unknown")
    for check in ("fabric_pairs", "fabric_bisection"):
        assert "fail" not in {outcome for host, outcome in outcomes(output, check).items() if host in GOOD}
    assert any(one["answer"] == "pass" for one in runs(fabric) if BAD not in one["hosts"])


@pytest.mark.parametrize("kind", ["kill", "partition"])
def test_lost_host_is_unknown(fabric: RunningLab, kind: str) -> None:
    """Its partner is not blamed, no further run includes it, and the partner has no remaining process."""
    argv = [sys.executable, "-m", "primus_bootstrap", "bench", str(fabric.hosts_file), "--json"]
    started = fabric.state_dir / f"bench/incoming/groups/{BAD}.json"
    started.unlink(missing_ok=True)
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert wait_for(lambda: started.exists() and '"started": true' in started.read_text(), timeout_s=900)
        fabric.fault(kind, BAD)
        out, err = running.communicate(timeout=3000)
    output = json.loads(out)
    ran = runs(fabric)
    lost = max(number for number, one in enumerate(ran) if BAD in one["hosts"])

    assert running.returncode == 4, out + err
    for check in ("fabric_pairs", "fabric_bisection"):
        assert outcomes(output, check)[BAD] == "unknown"
        assert "fail" not in outcomes(output, check).values()
    assert any(len(one["hosts"]) == len(GOOD) for one in ran[lost + 1 :]), "the others did not go on"
    for node in GOOD:
        assert fabric.execute(node, "pgrep", "-f", "workloads/bench/collectives.py").returncode == 1


def test_busy_host_is_excluded(fabric: RunningLab) -> None:
    """It is unknown with the reason, and no run includes it."""
    fabric.sh(BAD, f"systemd-run --unit {JOB_UNIT} sleep 3000")
    try:
        output = bench(fabric)
    finally:
        fabric.sh(BAD, f"systemctl stop {JOB_UNIT}")

    assert BAD not in {host for one in runs(fabric) for host in one["hosts"]}
    assert outcomes(output, "fabric_pairs")[BAD] == "unknown"
    assert [one["reason"] for one in output["verdicts"] if (one["check"], one["host"]) == ("fabric_pairs", BAD)] == ["jobs run on it"]
