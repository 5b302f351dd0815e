"""Test that no generated secret appears in outputs, processes and files of runs."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import ROOT, run_cli
from tests.lab.secret_rig import HOSTS, KEPT_IN, VALUES, files_of_host, search, search_controller, secrets_of, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3600)]

# The folders that hold them on node1, by the phase that writes there.
WRITTEN_IN = {
    "/etc/prometheus/primus": "monitoring",
    "/etc/redis": "storage",
    "/etc/juicefs": "storage",
    "/etc/envoy/dynamic": "gateway",
    "/etc/munge": "slurm",
    "/etc/slurm": "slurm",
}


def run_plain(lab: RunningLab, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the whole site with plain Ansible and maximum verbosity."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(lab.hosts_file), "playbooks/site.yml", *words]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING": "True"}
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False)


def forget_secret_files(lab: RunningLab) -> None:
    """Remove every file with a secret, so that the next run writes it."""
    for node in HOSTS:
        lab.sh(node, f"rm -f {' '.join(KEPT_IN)}")


@pytest.mark.fault
def test_no_secret_is_visible_when_it_is_written(applied_cluster: RunningLab, tmp_path: Path) -> None:
    """With `-vvv --diff` and with apply, no command line, environment, output, log or other file contains one."""
    lab = applied_cluster
    values = secrets_of(lab)
    outputs: list[subprocess.CompletedProcess[str]] = []
    with watched(lab, values, tmp_path / "stop") as seen:
        forget_secret_files(lab)
        outputs.append(run_plain(lab, "-vvv", "--diff"))
        forget_secret_files(lab)
        outputs.append(run_cli("diff", str(lab.hosts_file), timeout_s=900))
        outputs.append(run_cli("-vv", "apply", str(lab.hosts_file), "--yes", timeout_s=1500))
    outputs.append(run_cli("verify", str(lab.hosts_file), "--json", timeout_s=900))
    outputs.append(run_cli("report", str(lab.hosts_file), "--all"))
    on_hosts = {node: files_of_host(lab, node, values) for node in HOSTS}
    here = search_controller(lab, values)

    assert [done.returncode for done in outputs] == [0] * len(outputs), [done.stderr[-2000:] for done in outputs]
    assert {place: result["found"] for place, result in seen.items()} == {place: [] for place in seen}
    assert all(result["looks"] > 20 for result in seen.values()), seen
    assert [name for done in outputs for name, value in values.items() if value in done.stdout + done.stderr] == []
    assert {node: result["found"] for node, result in on_hosts.items()} == {node: [] for node in HOSTS}
    assert here == []


@contextmanager
def read_only(lab: RunningLab, node: str, folder: str) -> Iterator[None]:
    """Make a folder of a node read-only during the block."""
    lab.sh(node, f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")
    try:
        yield
    finally:
        lab.sh(node, f"umount {folder}")


@pytest.mark.fault
def test_no_secret_is_visible_when_a_write_fails(applied_cluster: RunningLab) -> None:
    """With read-only folders, runs fail without a value in an output, log or file, and apply recovers."""
    lab = applied_cluster
    values = secrets_of(lab)
    outputs: dict[str, subprocess.CompletedProcess[str]] = {}
    for folder, phase in WRITTEN_IN.items():
        lab.sh("node1", f"rm -f {' '.join(file for file in KEPT_IN if file.startswith(folder))}")
        with read_only(lab, "node1", folder):
            outputs[folder] = run_cli("-vv", "apply", str(lab.hosts_file), "--yes", "--phase", phase, timeout_s=900)
    on_host, here = files_of_host(lab, "node1", values), search_controller(lab, values)
    healed = lab.apply(*(f"--phase={phase}" for phase in dict.fromkeys(WRITTEN_IN.values())))

    assert {folder: done.returncode for folder, done in outputs.items()} == dict.fromkeys(WRITTEN_IN, 4)
    assert [name for done in outputs.values() for name, value in values.items() if value in done.stdout + done.stderr] == []
    assert on_host["found"] == []
    assert here == []
    assert healed.returncode == 0, healed.stdout + healed.stderr


@pytest.mark.fault
def test_no_secret_is_visible_during_a_rotation(applied_cluster: RunningLab, tmp_path: Path) -> None:
    """Neither the old nor the new value appears in a command line, environment, output, log or other file."""
    lab = applied_cluster
    former = secrets_of(lab)
    new = {file: secrets.token_urlsafe(30) for file in VALUES.values()}
    values = {**{f"former {name}": value for name, value in former.items()}, **{f"new {name}": value for name, value in new.items()}}
    outputs = []
    with watched(lab, values, tmp_path / "stop") as seen:
        for secret, file in VALUES.items():
            (lab.state_dir / "secrets" / file).write_text(f"{new[file]}\n")
            outputs.append(run_cli("-vv", "secrets", "rotate", str(lab.hosts_file), secret, "--yes", timeout_s=900))
    on_hosts = {node: files_of_host(lab, node, values) for node in HOSTS}
    here = search_controller(lab, values)

    assert [done.returncode for done in outputs] == [0] * len(outputs), [done.stdout[-2000:] + done.stderr[-2000:] for done in outputs]
    assert {place: result["found"] for place, result in seen.items()} == {place: [] for place in seen}
    assert [name for done in outputs for name, value in values.items() if value in done.stdout + done.stderr] == []
    assert {node: result["found"] for node, result in on_hosts.items()} == {node: [] for node in HOSTS}
    assert here == []


def test_secret_is_only_in_its_own_files(applied_cluster: RunningLab) -> None:
    """No other file, journal or run on the controller contains a generated secret."""
    values = secrets_of(applied_cluster)
    own = search(applied_cluster, "node1", values, mode="files", roots=["/etc"], since="", left_out=[], journal=False)

    assert len(values) >= 4
    assert {line.split(":")[0] for line in own["found"]} == set(KEPT_IN), "the search finds what is there"
    assert {node: files_of_host(applied_cluster, node, values)["found"] for node in HOSTS} == {node: [] for node in HOSTS}
    assert search_controller(applied_cluster, values) == []
