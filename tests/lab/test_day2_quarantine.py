"""Test quarantine and release of a node in a running Slurm cluster; each verb runs twice."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import run_cli, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]

NODE, CONTROLLER = "node2", "node1"
RECORD = "/var/lib/primus/quarantine.json"
KEPT = f"/var/lib/primus/quarantine/{NODE}.json"


def node(lab: RunningLab, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb of `node` as the owner, without checking the exit code."""
    return run_cli("node", verb, str(lab.hosts_file), *words, timeout_s=900)


def quarantine(lab: RunningLab, reason: str = "fan broken", *words: str) -> str:
    """Quarantine the node, which must succeed."""
    done = node(lab, "quarantine", NODE, "--reason", reason, "--owner", "ada", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def release(lab: RunningLab, *words: str) -> subprocess.CompletedProcess[str]:
    """Try to release the node."""
    return node(lab, "release", NODE, *(words or ("--owner", "ada")))


def in_slurm(lab: RunningLab) -> tuple[str, str]:
    """Return the node's state and reason in Slurm."""
    line = lab.sh(CONTROLLER, f"scontrol --oneliner show node {NODE}")
    state = re.search(r" State=(\S+)", line)
    reason = re.search(r" Reason=(.*?) \[", line)
    assert state
    return state[1], reason[1] if reason else ""


def check_health(lab: RunningLab) -> None:
    """Run the node's health checks now."""
    lab.sh(NODE, "systemctl start primus-health")


@pytest.fixture
def back(cluster: RunningLab) -> Iterator[RunningLab]:
    """The cluster, with the node in service afterwards."""
    yield cluster
    cluster.heal()
    for host in (NODE, CONTROLLER):
        cluster.sh(host, f"rm -f {RECORD} {KEPT}; systemctl start primus-health.timer || true")
    wait_for(lambda: cluster.execute(NODE, "systemctl", "is-active", "slurmd").returncode == 0, timeout_s=60)
    cluster.execute(CONTROLLER, "scontrol", "update", f"NodeName={NODE}", "State=RESUME")


def test_node_is_quarantined_and_released(back: RunningLab) -> None:
    """The node is drained with owner and reason, its job continues, and a newer health record allows the release."""
    job = back.sh(CONTROLLER, f"sbatch --parsable -w {NODE} --time 5 --wrap 'sleep 120' --output /dev/null --chdir /tmp")
    assert wait_for(lambda: back.sh(CONTROLLER, f"squeue -h -j {job} -o %T") == "RUNNING", timeout_s=60, every_s=1)

    assert "is quarantined" in quarantine(back)
    state, reason = in_slurm(back)
    record = json.loads(back.sh(NODE, f"cat {RECORD}"))

    assert "DRAIN" in state
    assert reason == "primus quarantine: ada: fan broken"
    assert (record["owner"], record["reason"], record["host"]) == ("ada", "fan broken", NODE)
    assert json.loads(back.sh(CONTROLLER, f"cat {KEPT}")) == record
    assert back.sh(CONTROLLER, f"squeue -h -j {job} -o %T") == "RUNNING"
    assert "nothing to do" in quarantine(back)
    assert json.loads(back.sh(NODE, f"cat {RECORD}")) == record

    check_health(back)
    first, second = release(back), release(back)

    assert (first.returncode, second.returncode) == (0, 0), first.stdout + first.stderr
    assert "is released" in first.stdout
    assert "nothing to do" in second.stdout
    assert "DRAIN" not in in_slurm(back)[0]
    assert back.execute(NODE, "test", "-e", RECORD).returncode == back.execute(CONTROLLER, "test", "-e", KEPT).returncode == 1
    back.sh(CONTROLLER, f"scancel {job}")


def test_release_needs_a_newer_pass_and_the_owner(back: RunningLab) -> None:
    """Older, stale and missing records and another owner are refused with a fix."""
    back.sh(NODE, "systemctl stop primus-health.timer")
    check_health(back)
    quarantine(back)
    refusals = {"older than the quarantine": release(back), "is ada's": release(back, "--owner", "bob")}
    back.sh(NODE, 'sed -i \'s/"valid_for_s": [0-9]*/"valid_for_s": 0/\' /var/lib/primus/health.json; sleep 1')
    refusals["is unknown"] = release(back)
    back.sh(NODE, "rm /var/lib/primus/health.json")
    refusals["/var/lib/primus/health.json does not exist"] = release(back)

    for words, done in refusals.items():
        assert done.returncode == 4
        assert words in done.stdout
        assert "fix: " in done.stdout
    assert "DRAIN" in in_slurm(back)[0]
    assert node(back, "quarantine", NODE, "--reason", "mine now", "--owner", "bob").returncode == 4
    assert json.loads(back.sh(NODE, f"cat {RECORD}"))["owner"] == "ada"


def test_drain_of_an_administrator_stays(back: RunningLab) -> None:
    """A manual drain keeps its reason during quarantine and release."""
    back.sh(CONTROLLER, f"scontrol update NodeName={NODE} State=DRAIN Reason='moving the rack'")
    quarantine(back)
    before = in_slurm(back)
    check_health(back)
    done = release(back)

    assert before[1] == "moving the rack"
    assert done.returncode == 0, done.stdout + done.stderr
    assert in_slurm(back) == before


def test_dead_node_is_quarantined_and_not_released(back: RunningLab) -> None:
    """The controllers store the record; the release is refused until the host answers."""
    back.fault("kill", NODE)
    assert "is quarantined" in quarantine(back, "does not boot")
    refused = release(back)
    listed = json.loads(run_cli("node", "list", str(back.hosts_file), "--json", "--timeout", "10").stdout)["hosts"]
    shown: dict[str, Any] = next(host for host in listed if host["host"] == NODE)

    assert refused.returncode == 4
    assert f"{NODE} does not answer, so its health is unknown" in refused.stdout
    assert (shown["answered"], shown["health"], shown["quarantine"]["reason"]) == (False, "unknown", "does not boot")

    back.fault("start", NODE)
    assert wait_for(lambda: back.ssh(NODE, "true").returncode == 0, timeout_s=60, every_s=1)
    assert wait_for(lambda: "NOT_RESPONDING" not in in_slurm(back)[0], timeout_s=60, every_s=1)
    assert "DRAIN" in in_slurm(back)[0]
    assert back.execute(NODE, "test", "-e", RECORD).returncode == 1

    check_health(back)
    done = release(back)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "DRAIN" not in in_slurm(back)[0]


def test_force_requeues_the_job(back: RunningLab) -> None:
    """With --force a running job is requeued at once."""
    job = back.sh(CONTROLLER, f"sbatch --parsable --requeue -w {NODE} --time 5 --wrap 'sleep 300' --output /dev/null --chdir /tmp")
    assert wait_for(lambda: back.sh(CONTROLLER, f"squeue -h -j {job} -o %T") == "RUNNING", timeout_s=60, every_s=1)
    quarantine(back, "smells of smoke", "--force")
    left = wait_for(lambda: back.sh(CONTROLLER, f"squeue -h -j {job} -o %T") == "PENDING", timeout_s=60, every_s=1)
    back.sh(CONTROLLER, f"scancel {job}")

    assert left
    assert in_slurm(back)[1] == "primus quarantine: ada: smells of smoke"
