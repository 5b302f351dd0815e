"""Test that a reset restores the hosts: snapshots before apply and after reset are equal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_fixture import create_lab
from tests.lab.lab_rig import ROOT, RunningLab, engine_argv, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(5400)]

NODES = ("node1", "node2")
# What docs/reset.md says is kept: data, the accounts that own them, home folders, and the note of what was kept.
KEPT = re.compile(
    r"^/(var/lib/(redis|mysql|slurm|primus|containers|docker-registry|prometheus)|var/backups/(redis|slurm_accounting)|srv/juicefs|home/ada)(/|$)"
    r"|^/etc/(passwd|group|shadow|gshadow)$"
)

Snapshot = dict[str, Any]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Two fresh hosts, with every service of the lab in their hosts.yaml."""
    yield from create_lab(RunningLab(f"test{os.getpid()}-b", tmp_path_factory.mktemp("reset")), "--nodes", "2")


def snapshot(lab: RunningLab) -> dict[str, Snapshot]:
    """Return the state of every host."""
    script = (Path(__file__).parent / "host_snapshot.py").read_text()
    found = {}
    for node in NODES:
        argv = [*engine_argv(), "exec", "-i", lab.container(node), "python3", "-"]
        done = subprocess.run(argv, input=script, capture_output=True, text=True, timeout=120, check=True)
        found[node] = json.loads(done.stdout)
    return found


def differences(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return every difference: the values before and after."""
    found: dict[str, Any] = {}
    for kind, was in before.items():
        now = after[kind]
        if isinstance(was, dict):
            found |= {f"{name}": (was.get(name), now.get(name)) for name in {*was, *now} if was.get(name) != now.get(name)}
        elif was != now:
            found[kind] = (sorted({*was} - {*now}), sorted({*now} - {*was}))
    return found


def reset(lab: RunningLab, *words: str, confirm: str = "") -> subprocess.CompletedProcess[str]:
    """Run the verb, without checking the exit code."""
    return run_cli("reset", str(lab.hosts_file), "--confirm", confirm or lab.name, *words, timeout_s=1800)


def test_wrong_name_is_refused(hosts: RunningLab) -> None:
    """Another cluster's name gives exit code 2, without a run."""
    done = reset(hosts, confirm="another")

    assert done.returncode == 2
    assert f"the cluster's name is {hosts.name}, not another" in done.stderr
    assert not (hosts.state_dir / "runs").exists()


def test_reset_restores_the_hosts(hosts: RunningLab) -> None:
    """After apply and an interrupted and repeated reset only data stay, which another apply uses; --delete-data removes them."""
    bare = snapshot(hosts)
    applied = hosts.apply()
    assert applied.returncode == 0, applied.stdout + applied.stderr
    hosts.sh("node1", "echo kept > /jfs/hello")

    kill_a_reset(hosts)
    finished, second = reset(hosts, "--json"), reset(hosts)
    assert finished.returncode == second.returncode == 0, finished.stdout + second.stdout
    kept = snapshot(hosts)
    left = {node: {name for name in differences(bare[node], kept[node]) if not KEPT.match(name)} for node in NODES}

    assert left == {"node1": set(), "node2": set()}
    assert "/var/lib/redis: data" in {record["reason"] for record in json.loads(finished.stdout)["kept"]}
    assert " 0 changes, " in second.stdout

    again = hosts.apply()
    assert again.returncode == 0, again.stdout + again.stderr
    assert hosts.sh("node2", "cat /jfs/hello") == "kept"

    done = reset(hosts, "--delete-data")
    assert done.returncode == 0, done.stdout + done.stderr
    after = snapshot(hosts)

    assert {node: differences(bare[node], after[node]) for node in NODES} == {"node1": {}, "node2": {}}


def kill_a_reset(lab: RunningLab) -> None:
    """Start a reset, and kill the controller's process after the first change."""
    argv = [sys.executable, "-m", "primus_bootstrap", "reset", str(lab.hosts_file), "--confirm", lab.name]
    process = subprocess.Popen(argv, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        if lab.execute("node2", "systemctl", "is-active", "--quiet", "slurmd").returncode:
            break
        time.sleep(0.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)


def test_server_with_remaining_clients_is_not_reset(hosts: RunningLab) -> None:
    """The reset fails, names the clients, and contacts no host."""
    done = reset(hosts, "--limit", "node1")

    assert done.returncode == 4
    assert "node1 serves node2" in done.stdout
    assert "to --limit" in done.stdout
