"""Test the bench gate with Slurm: joining, failing and returning nodes, and unknown results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.bench.quarantine.policy import SHIPPED
from tests.lab.lab_rig import ROOT, run_cli, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]

CONTROLLER, NODE, OTHER = "node1", "node2", "node3"
LAUNCHER = "/usr/local/bin/primus-cli"


def bench(lab: RunningLab, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the verb; return its exit code and output."""
    done = run_cli("bench", str(lab.hosts_file), "--json", *words, timeout_s=900)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def expect_gpus(lab: RunningLab, node: str) -> None:
    """Set a number of GPUs in hosts.yaml that the node does not have."""
    (lab.folder / "host_vars").mkdir(exist_ok=True)
    (lab.folder / f"host_vars/{node}.yml").write_text("bench_expected: {gpus: 8}\n")


def state(lab: RunningLab, node: str = NODE) -> tuple[str, str]:
    """Return a node's state and reason in Slurm."""
    line = lab.sh(CONTROLLER, f"scontrol --oneliner show node {node}")
    found, reason = re.search(r" State=(\S+)", line), re.search(r" Reason=(.*?) \[", line)
    assert found
    # PLANNED says that the scheduler has the node in mind for a waiting job, as verify's own that it has just called off.
    return found[1].replace("+PLANNED", ""), reason[1] if reason else ""


@pytest.fixture
def gate(cluster: RunningLab) -> Iterator[RunningLab]:
    """The cluster with its nodes in service, also afterwards."""
    yield cluster
    cluster.heal()
    for node in (NODE, OTHER):
        (cluster.folder / f"host_vars/{node}.yml").unlink(missing_ok=True)
    run_cli("bench", str(cluster.hosts_file), "--reset-breaker", "--confirm", cluster.name)
    cluster.apply("--phase", "gpu")
    code, output = bench(cluster)
    assert code == 0, output


def test_nodes_have_joined_through_the_gate(gate: RunningLab) -> None:
    """New nodes were drained with the reason `bench pending`, and resumed after a pass."""
    log = gate.sh(CONTROLLER, "grep 'bench pending' /var/log/slurm/slurmctld.log")

    assert {
        node for node in (NODE, OTHER) if f"update_node: node {node} reason set to: primus quarantine: primus-bench: bench pending" in log
    } == {
        NODE,
        OTHER,
    }
    assert [state(gate, node)[0] for node in (NODE, OTHER)] == ["IDLE", "IDLE"]
    for node in (NODE, OTHER):
        assert json.loads(gate.sh(node, "cat /var/lib/primus/bench/passed.json"))["tier"] == "checks"


def test_failing_node_is_drained_until_it_passes(gate: RunningLab) -> None:
    """Slurm has the reason; apply neither measures nor resumes it; a passed bench resumes it."""
    expect_gpus(gate, NODE)
    codes = [bench(gate)[0] for _ in range(2)]
    gone = state(gate)
    applied = gate.apply("--phase", "bench")
    still = state(gate)
    (gate.folder / f"host_vars/{NODE}.yml").unlink()
    back = [bench(gate, "--limit", NODE)[0] for _ in range(2)]

    assert codes == [4, 4]
    assert "DRAIN" in gone[0]
    assert gone[1] == "primus quarantine: primus-bench: bench: preflight_gpus failed: unexpected number of GPUs"
    assert (applied.returncode, still) == (0, gone)
    assert back == [0, 0]
    assert state(gate)[0] == "IDLE"
    assert gate.execute(NODE, "test", "-e", "/var/lib/primus/quarantine.json").returncode == 1


def test_breaker_stops_the_quarantine_of_many_nodes(gate: RunningLab) -> None:
    """The breaker stays open until a person resets it."""
    for node in (NODE, OTHER):
        expect_gpus(gate, node)
    first, output = bench(gate)
    second, again = bench(gate)

    assert (first, second) == (4, 4)
    assert {one["action"] for one in output["decisions"]} == {"hold"}
    assert again["breaker"]["since"] == output["breaker"]["since"]
    assert [state(gate, node)[0] for node in (NODE, OTHER)] == ["IDLE", "IDLE"]


def test_launcher_without_results_is_unknown(gate: RunningLab) -> None:
    """Exit code 0 without results is neither a pass nor a failure."""
    gate.sh(NODE, f"printf '#!/bin/sh\\nexit 0\\n' > {LAUNCHER}")
    code, output = bench(gate)

    assert code == 4
    assert output["hosts"] == {NODE: "unknown", OTHER: "pass"}
    assert state(gate)[0] == "IDLE"


def test_hanging_launcher_is_killed_and_unknown(gate: RunningLab) -> None:
    """The step ends at its time limit, and the other node is evaluated."""
    policy = gate.folder / "policy.yml"
    policy.write_text(SHIPPED.read_text().replace("timeout_s: 180", "timeout_s: 2"))
    gate.sh(NODE, f"printf '#!/bin/sh\\nsleep 3600\\n' > {LAUNCHER}")
    (gate.folder / f"host_vars/{NODE}.yml").parent.mkdir(exist_ok=True)
    for node in (NODE, OTHER):
        (gate.folder / f"host_vars/{node}.yml").write_text(f"bench_policy_file: {policy}\n")
    code, output = bench(gate)

    assert code == 4
    assert output["hosts"][NODE] == "unknown"
    assert any("no answer within 62 s" in one["reason"] for one in output["verdicts"] if one["host"] == NODE)
    assert gate.execute(NODE, "pgrep", "-f", "sleep 3600").returncode == 1


def test_lost_node_is_unknown(gate: RunningLab) -> None:
    """After a power failure during the bench, the other node passes, and the lost one is unknown."""
    gate.sh(NODE, f"printf '#!/bin/sh\\nsleep 3600\\n' > {LAUNCHER}")
    before = set((gate.state_dir / "bench/runs").iterdir())
    argv = [sys.executable, "-m", "primus_bootstrap", "bench", str(gate.hosts_file), "--json"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        incoming = gate.state_dir / f"bench/incoming/{NODE}.json"
        assert wait_for(lambda: incoming.exists() and '"requested": true' in incoming.read_text(), timeout_s=300)
        gate.fault("kill", NODE)
        out, err = running.communicate(timeout=600)

    assert running.returncode == 4, out + err
    assert set((gate.state_dir / "bench/runs").iterdir()) - before
    assert json.loads(out)["hosts"] == {NODE: "unknown", OTHER: "pass"}
