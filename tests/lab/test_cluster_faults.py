"""Test the cluster with faults: jobs and files survive, errors name the cause, and the cluster recovers."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import run_cli, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2700)]

HOSTS = ("node1", "node2", "node3")
REDIS_PORT = 6380


def rows_of(found: dict[str, Any], service: str) -> dict[str, dict[str, Any]]:
    """Return the results of `verify --json` for one service by host."""
    return {row["host"]: row for row in found["services"] if row["service"] == service}


def is_read_everywhere(lab: RunningLab, path: str, text: str) -> bool:
    """Return whether every host reads this text from the file within a few seconds."""
    return all(lab.execute(node, "timeout", "10", "cat", path).stdout == text for node in HOSTS)


@pytest.mark.fault
def test_partitioned_redis_is_reported_and_recovers(cluster: RunningLab) -> None:
    """During the partition a write fails and verify names the cause; afterwards all files are intact."""
    cluster.sh("node2", "mkdir -p /jfs/faults && echo intact > /jfs/faults/before && sync")
    write = ("timeout", "150", "sh", "-c", "echo written > /jfs/faults/during")
    with cluster.cut_off("node1", REDIS_PORT):
        refused = cluster.execute("node3", *write, timeout_s=180)
        started = time.monotonic()
        broken = rows_of(cluster.verify("--limit", "node2,node3"), "juicefs")
        seconds = time.monotonic() - started

    told = ("Input/output error", "Connection timed out")  # which of them depends on where the mount is in its retries
    assert any(error in refused.stderr for error in told), f"programs get an error, and do not hang for ever: {refused.stderr}"
    assert set(broken) == {"node2", "node3"}
    assert {row["verdict"] for row in broken.values()} <= {"fail", "unknown"}, broken
    assert all("metadata engine" in row["fix"] for row in broken.values()), broken
    assert seconds < 240
    assert wait_for(lambda: cluster.execute("node3", *write, timeout_s=180).returncode == 0, timeout_s=120, every_s=1)
    assert wait_for(lambda: is_read_everywhere(cluster, "/jfs/faults/during", "written\n"), timeout_s=120, every_s=1)
    assert is_read_everywhere(cluster, "/jfs/faults/before", "intact\n")
    assert cluster.verify()["exit_code"] == 0


@pytest.mark.fault(cheap=True)
def test_files_survive_a_restart_of_redis(cluster: RunningLab) -> None:
    """Earlier files are readable on every host after Redis was killed."""
    cluster.sh("node2", "mkdir -p /jfs/faults && echo kept > /jfs/faults/restart && sync && sleep 1.5")
    cluster.sh("node1", "systemctl kill --signal=KILL redis-server")

    assert wait_for(lambda: is_read_everywhere(cluster, "/jfs/faults/restart", "kept\n"), timeout_s=120, every_s=1)


@pytest.mark.fault
@pytest.mark.parametrize("node", ["node1", "node3"])
def test_cluster_survives_the_restart_of_a_host(cluster: RunningLab, node: str) -> None:
    """After a power failure of the service host or a compute host, every check passes again."""
    cluster.sh("node2", f"mkdir -p /jfs/faults && echo kept > /jfs/faults/{node} && sync && sleep 1.5")
    cluster.fault("kill", node)
    cluster.fault("start", node)

    assert wait_for(lambda: is_read_everywhere(cluster, f"/jfs/faults/{node}", "kept\n"), timeout_s=180, every_s=1)
    assert wait_for(lambda: cluster.verify()["exit_code"] == 0, timeout_s=300, every_s=5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 24 KiB on this machine for one test."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "state"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine lets nobody mount: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=True)


@pytest.mark.fault
def test_full_disk_of_the_controller_is_reported(cluster: RunningLab, small_disk: Path) -> None:
    """Apply ends with exit code 4, the folder and a fix; with free space it succeeds."""
    words = ("apply", str(cluster.hosts_file), "--yes", "--phase", "preflight")
    environment = {"PRIMUS_STATE_DIR": str(small_disk)}

    full = run_cli(*words, env=environment)
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], capture_output=True, check=True)
    after = run_cli(*words, env=environment)

    assert full.returncode == 4, full.stdout + full.stderr
    assert "No space left on device" in full.stderr
    assert str(small_disk) in full.stderr
    assert "fix:" in full.stderr
    assert after.returncode == 0, after.stdout + after.stderr
