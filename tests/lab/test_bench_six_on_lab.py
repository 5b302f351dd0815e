"""Test the comparison of six hosts that run real benchmarks one at a time."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.bench.quarantine.policy import SHIPPED
from tests.lab.lab_fixture import create_lab
from tests.lab.lab_rig import RunningLab, run_cli
from tests.lab.slurm_rig import Jobs
from tests.lab.workload_fixture import VENV

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(3600)]

NODES = tuple(f"node{number}" for number in range(2, 8))
SLOW = "node4"
# One sample takes longer than the tenth of a second in which the kernel counts what a slowed host has used up.
STEPS = [
    {"run": "preflight", "timeout_s": 180, "options": {"checks": ["gpu", "network", "host", "gpus"]}},
    {"run": "gemm", "timeout_s": 120, "repeats": 20, "options": {"shapes": ["2048x2048x2048"], "dtypes": ["fp32"]}},
]


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create node1 for services and six hosts with torch that have passed the gate."""
    running = RunningLab(f"test{os.getpid()}-six", tmp_path_factory.mktemp("six"))
    for lab in create_lab(running, "--core", "--nodes", "7", "--torch"):
        policy = yaml.safe_load(SHIPPED.read_text())
        policy["tiers"]["quick"]["steps"] = STEPS
        (lab.folder / "policy.yml").write_text(yaml.safe_dump(policy))
        settings = {
            "bench_tier": "checks",
            "bench_policy_file": str(lab.folder / "policy.yml"),
            "bench_parallel_hosts": 1,
            "primus_cli_settings": {"direct": {"venv": VENV}},
        }
        (lab.folder / "group_vars").mkdir(exist_ok=True)
        (lab.folder / "group_vars/all.yml").write_text(yaml.safe_dump(settings))
        done = lab.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield lab


def bench(lab: RunningLab, *words: str) -> dict[str, Any]:
    """Run the verb with the compute tier, and return its output."""
    done = run_cli("bench", str(lab.hosts_file), "--tier", "quick", "--json", *words, timeout_s=1800)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def gemm(output: dict[str, Any]) -> dict[str, str]:
    """Return each host's verdict on matrix multiplication."""
    return {one["host"]: one["verdict"] for one in output["verdicts"] if one["check"] == "bench_gemm"}


def test_a_slow_node_is_found_by_its_peers(six: RunningLab) -> None:
    """Half a processor is left to it: it fails and goes, and nobody else does.

    When it has all of them again nothing speaks against it. Whether it passes depends on how far apart six hosts lie that share
    processors: too far for a pass, mostly, and then it stays out until a person releases it.
    """
    jobs = Jobs(six)
    six.fault("slow", SLOW)
    slowed = bench(six)
    gone = jobs.node_state(SLOW)
    six.fault("heal", SLOW)
    healed = bench(six)
    run_cli("node", "release", str(six.hosts_file), SLOW, "--owner", "primus-bench", timeout_s=600)

    assert gemm(slowed)[SLOW] == "fail", slowed
    assert [node for node, verdict in gemm(slowed).items() if verdict == "fail"] == [SLOW]
    assert "DRAIN" in gone[0]
    assert gone[1].startswith("primus quarantine: primus-bench: bench: bench_gemm")
    assert gemm(healed)[SLOW] in ("pass", "unknown"), healed


def test_many_slow_nodes_are_unknown(six: RunningLab) -> None:
    """With three slow hosts of six, the healthy speed is unknown."""
    jobs = Jobs(six)
    for node in NODES[:3]:
        six.fault("slow", node)
    output = bench(six)
    for node in NODES[:3]:
        six.fault("heal", node)

    assert "fail" not in gemm(output).values(), output
    assert not [node for node in NODES if "DRAIN" in jobs.node_state(node)[0]]


def test_breaker_stops_three_failures_of_six(six: RunningLab) -> None:
    """Three hosts lack GPUs: none is quarantined before a person resets the breaker."""
    jobs = Jobs(six)
    (six.folder / "host_vars").mkdir(exist_ok=True)
    for node in NODES[:3]:
        (six.folder / f"host_vars/{node}.yml").write_text("bench_expected: {gpus: 8}\n")
    output = bench(six)
    for node in NODES[:3]:
        (six.folder / f"host_vars/{node}.yml").unlink()

    assert [output["hosts"][node] for node in NODES[:3]] == ["fail"] * 3
    assert {one["action"] for one in output["decisions"] if one["host"] in NODES[:3]} == {"hold"}
    assert output["breaker"]
    assert not [node for node in NODES if "DRAIN" in jobs.node_state(node)[0]]
