"""Test that a host without its prerequisites for jobs is drained, and resumed by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import wait_for
from tests.lab.slurm_rig import Jobs

if TYPE_CHECKING:
    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]

# Twice what a look at the host (60 s) and Slurm's look at that (10 s on the lab) may take, on a busy machine.
SEEN_S = 180


def checks(lab: RunningLab, node: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last health records of a host by check and device."""
    seen = json.loads(lab.execute(node, "primus-health", "read", "--json").stdout)
    return {(one["check"], one["device"]): one for one in seen["checks"]}


def test_host_without_the_shared_file_system_is_drained(cluster: RunningLab) -> None:
    """The timer on node2 detects it, Slurm drains the host with the reason, and resumes it with the mount."""
    jobs = Jobs(cluster)
    jobs.cancel_all()
    assert wait_for(lambda: jobs.node_state("node2")[0] == "IDLE", timeout_s=SEEN_S, every_s=1), jobs.node_state("node2")
    cluster.sh("node2", "systemctl start primus-health.service")
    before = checks(cluster, "node2")

    cluster.sh("node2", "systemctl stop juicefs.service", timeout_s=120)
    try:
        drained = wait_for(lambda: "DRAIN" in jobs.node_state("node2")[0], timeout_s=SEEN_S, every_s=1)
        state, reason = jobs.node_state("node2")
        lost = checks(cluster, "node2")
        # Where it may not run, a job waits; on the other host one runs meanwhile. No folder of /jfs is needed for it.
        other = cluster.execute("node1", "timeout", "60", "srun", "-N1", "-t", "1", "--chdir=/tmp", "hostname", "-s", timeout_s=90)
    finally:
        cluster.sh("node2", "systemctl start juicefs.service", timeout_s=200)
    back = wait_for(lambda: jobs.node_state("node2")[0] == "IDLE", timeout_s=SEEN_S, every_s=1)

    assert before["mount", "/jfs"]["verdict"] == before["unit", "munge.service"]["verdict"] == "pass", before
    assert drained, (state, reason, lost)
    assert reason.startswith("primus: health: mount /jfs: nothing is mounted at /jfs: juicefs.service is inactive"), reason
    assert lost["mount", "/jfs"]["verdict"] == "fail", lost
    assert lost["unit", "munge.service"]["verdict"] == "pass", lost
    assert other.stdout.strip() == "node3", other.stdout + other.stderr
    assert back, (jobs.node_state("node2"), checks(cluster, "node2"))


def test_restart_of_the_mount_is_not_a_failure(cluster: RunningLab) -> None:
    """During restarts the health is pass or unknown, and the host stays in service."""
    jobs = Jobs(cluster)
    assert wait_for(lambda: jobs.node_state("node2")[0] == "IDLE", timeout_s=SEEN_S, every_s=1), jobs.node_state("node2")

    cluster.sh("node2", "systemd-run --quiet --unit=restarts sh -c 'for _ in 1 2 3 4 5; do systemctl restart juicefs; sleep 1; done'")
    seen = []
    while cluster.execute("node2", "systemctl", "is-active", "--quiet", "restarts").returncode == 0:
        # Not by its unit: systemd starts no unit more than five times in ten seconds.
        look = "python3 -E -s -B /usr/local/lib/primus/health/run_checks.py --out /run/primus-test.json --locks /run/primus-test-locks"
        records = json.loads(cluster.sh("node2", f"{look} > /dev/null && cat /run/primus-test.json"))["checks"]
        seen += [(one["verdict"], one["reason"]) for one in records if one["check"] == "mount"]

    assert seen
    assert {verdict for verdict, _ in seen} <= {"pass", "unknown"}, seen
    assert "DRAIN" not in jobs.node_state("node2")[0], jobs.node_state("node2")
