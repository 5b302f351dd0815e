"""Test probe, exec and the role preflight on real systemd hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.lab.lab_rig import RunningLab, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long("primus_bootstrap/lab", "primus_bootstrap/fleet", "primus_bootstrap/engine", "roles/preflight"),
]


def probe(lab: RunningLab, *words: str) -> dict[str, dict[str, Any]]:
    """Probe the lab and return its hosts by name."""
    done = run_cli("probe", str(lab.hosts_file), "--json", *words)
    return {host["host"]: host for host in json.loads(done.stdout)["hosts"]}


def preflight(lab: RunningLab, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the playbook with plain Ansible."""
    argv = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        str(lab.hosts_file),
        str(content.playbooks_dir() / "preflight.yml"),
    ]
    env = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run([*argv, *words], env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def no_sudo(lab: RunningLab) -> Iterator[RunningLab]:
    """Remove the sudo rule of node2 for one test."""
    lab.execute("node2", "sh", "-c", "mkdir -p /root/kept && mv /etc/sudoers.d/primus /root/kept/")
    yield lab
    lab.execute("node2", "mv", "/root/kept/primus", "/etc/sudoers.d/primus")


def test_probe_reports_the_release(lab: RunningLab) -> None:
    """Every host reports its release, sudo, an address, and a small clock offset."""
    hosts = probe(lab)

    assert {name: host["facts"]["os_version"] for name, host in hosts.items()} == {"node1": "12", "node2": "13", "node3": "12"}
    for name, host in hosts.items():
        facts = host["facts"]
        assert (facts["hostname"], facts["sudo"]) == (name, "yes")
        assert abs(facts["clock"]["offset_s"]) <= facts["clock"]["error_s"] + 0.1
        assert [nic["address"] for nic in facts["nics"] if nic["name"] == facts["default_nic"]] == [lab.address(name)]
    assert len({host["facts"]["machine_id"] for host in hosts.values()}) == 3


def test_preflight_passes_and_changes_nothing(lab: RunningLab) -> None:
    """The playbook passes with changed=0, also in check mode, and has records of every host."""
    done, checked = preflight(lab, "-v"), preflight(lab, "--check")

    assert (done.returncode, checked.returncode) == (0, 0), done.stdout + checked.stdout
    assert done.stdout.count("changed=0 ") == checked.stdout.count("changed=0 ") == 3
    assert "machine_id_unique" in done.stdout


@pytest.mark.fault(cheap=True)
def test_denied_sudo_is_reported(no_sudo: RunningLab) -> None:
    """The host is named with the reason and a fix; the others continue."""
    shown, done = run_cli("probe", str(no_sudo.hosts_file)), preflight(no_sudo)

    assert shown.returncode == 4
    assert "node2: cannot become root: sudo: a password is required\n  fix: pass the password" in shown.stdout
    assert done.returncode == 2
    assert "sudo: cannot become root: Missing sudo password. Fix: add a sudo rule for this user" in done.stdout + done.stderr
    recap = {line.split()[0]: line for line in done.stdout.splitlines() if " failed=" in line}
    assert ["failed=1" in recap[name] for name in ("node1", "node2", "node3")] == [False, True, False]


@pytest.mark.fault(cheap=True)
def test_frozen_host_is_unknown_in_time(lab: RunningLab) -> None:
    """A frozen host uses its time limit and does not delay others."""
    lab.fault("pause", "node3")
    try:
        started = time.monotonic()
        hosts = probe(lab, "--timeout", "4")
        seconds = time.monotonic() - started
    finally:
        lab.fault("start", "node3")

    assert {name: host["state"] for name, host in hosts.items()} == {"node1": "answered", "node2": "answered", "node3": "unknown"}
    assert hosts["node3"]["cause"] == "timeout"
    assert seconds < 15


@pytest.mark.fault(cheap=True)
def test_equal_machine_ids_stop_both_hosts(lab: RunningLab) -> None:
    """Both hosts fail, each with the name of the other."""
    own = lab.execute("node2", "cat", "/etc/machine-id").stdout.strip()
    other = lab.execute("node1", "cat", "/etc/machine-id").stdout.strip()
    lab.execute("node2", "sh", "-c", f"echo {other} > /etc/machine-id")
    try:
        done = preflight(lab)
    finally:
        lab.execute("node2", "sh", "-c", f"echo {own} > /etc/machine-id")

    text = done.stdout + done.stderr
    assert done.returncode == 2
    assert "machine_id_unique: node2 has the same machine-id" in text
    assert "machine_id_unique: node1 has the same machine-id" in text


def test_exec_runs_on_a_group_as_root(lab: RunningLab) -> None:
    """A command runs on all hosts of a pattern, with --sudo as root."""
    done = run_cli("exec", "all:!node3", "-i", str(lab.hosts_file), "--sudo", "--", "id -un")

    assert (done.returncode, done.stdout) == (0, "node1, node2 (2 hosts): exit code 0\n    root\n")
