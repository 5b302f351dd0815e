"""Test that invalid input is refused before a host changes, by the verb and by plain Ansible."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap.lab.hosts_text import hosts_text
from primus_bootstrap.lab.lab_values import make_lab
from tests.lab.lab_rig import ROOT, run_cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200), pytest.mark.fault]

NODES = ("node1", "node2", "node3")
Inventory = dict[str, dict[str, dict[str, object]]]


def unknown_partition(hosts: Inventory) -> None:
    """Define a partition with unknown nodes."""
    hosts["all"]["vars"]["slurm_partitions"] = [{"name": "main", "nodes": "gpu99", "default": True}]


def qos_without_accounting(hosts: Inventory) -> None:
    """Remove the accounting host and keep the QOS."""
    del hosts["all"]["children"]["slurm_accounting"]


def redis_without_password(hosts: Inventory) -> None:
    """Remove the password."""
    del hosts["all"]["vars"]["redis_password"]


def two_controllers_without_shared_folder(hosts: Inventory) -> None:
    """Add a backup controller without a shared folder."""
    hosts["all"]["children"]["slurm_controller"] = {"hosts": {"node1": None, "node2": None}}


BROKEN: dict[str, tuple[Callable[[Inventory], None], str]] = {
    "unknown partition": (unknown_partition, "gpu99"),
    "QOS without accounting": (qos_without_accounting, "slurm_accounting"),
    "Redis without a password": (redis_without_password, "redis_password"),
    "two controllers without a shared folder": (two_controllers_without_shared_folder, "slurm_shared_state_dir"),
}


@pytest.fixture
def broken_file(lab: RunningLab) -> Iterator[Callable[[Callable[[Inventory], None]], Path]]:
    """Write a hosts.yaml for the bare lab with one error."""
    path = lab.folder / "broken.yaml"

    def write(break_it: Callable[[Inventory], None]) -> Path:
        subnet = IPv4Network(f"{lab.address('node1')}/24", strict=False)
        hosts = yaml.safe_load(hosts_text(make_lab(lab.name, lab.folder, subnet=subnet, count=3, suites=("",)), "core"))
        break_it(hosts)
        path.write_text(yaml.safe_dump(hosts))
        return path

    yield write
    path.unlink(missing_ok=True)


@pytest.fixture
def marked(lab: RunningLab) -> Callable[[], dict[str, list[str]]]:
    """Record the time on every host; the returned function lists files that changed since then."""
    for node in NODES:
        lab.sh(node, "touch /run/primus-test-mark && sleep 0.1")

    def changed() -> dict[str, list[str]]:
        folders = "/etc /usr /opt /srv /home /root /var/lib /var/cache"
        # Where a test before this one brought out node_health, its timer renews its record whatever happens.
        others = "! -path '*/.ansible*' ! -path /var/lib/primus ! -path '/var/lib/primus/health.json*'"
        return {node: lab.sh(node, f"find {folders} -xdev -newer /run/primus-test-mark {others}").split() for node in NODES}

    return changed


def logins(lab: RunningLab) -> dict[str, int]:
    """Return the number of logins of each host."""
    return {node: int(lab.sh(node, "journalctl -u ssh -o cat | grep -c 'Accepted publickey' || true")) for node in NODES}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_input_contacts_no_host(lab: RunningLab, broken_file: Callable[[Callable[[Inventory], None]], Path], name: str) -> None:
    """`apply` ends with exit code 2, the cause and a fix, without a login on any host."""
    break_it, word = BROKEN[name]
    before = logins(lab)

    done = run_cli("apply", str(broken_file(break_it)), "--yes")

    assert done.returncode == 2, done.stdout + done.stderr
    assert word in done.stderr
    assert "fix:" in done.stderr
    assert logins(lab) == before


@pytest.mark.parametrize("name", BROKEN)
def test_plain_ansible_refuses_invalid_input(
    broken_file: Callable[[Callable[[Inventory], None]], Path],
    marked: Callable[[], dict[str, list[str]]],
    name: str,
) -> None:
    """`ansible-playbook site.yml` fails with the cause and a fix, and changes nothing."""
    break_it, word = BROKEN[name]
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(broken_file(break_it)), "playbooks/site.yml"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING": "True"}

    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode != 0, done.stdout
    assert word in done.stdout + done.stderr
    assert re.search(r"[Ff]ix:", done.stdout)
    assert set(re.findall(r"changed=(\d+)", done.stdout)) <= {"0"}
    assert marked() == {node: [] for node in NODES}


# A port of node1, and the groups of a cluster in which the other hosts depend on who has it.
TAKEN: dict[str, tuple[int, dict[str, tuple[str, ...]]]] = {
    "Redis": (6380, {"redis": ("node1",), "gpu_node": NODES}),
    "the controller of Slurm": (
        6817,
        {"slurm_controller": ("node1",), "slurm_accounting": ("node1",), "slurm_node": ("node2", "node3"), "gpu_node": NODES},
    ),
}


@pytest.mark.parametrize("service", TAKEN)
def test_used_port_is_refused(
    lab: RunningLab,
    broken_file: Callable[[Callable[[Inventory], None]], Path],
    marked: Callable[[], dict[str, list[str]]],
    service: str,
) -> None:
    """If another program uses a port of a service for other hosts, apply fails in its first phase."""
    port, groups = TAKEN[service]
    children: dict[str, object] = {group: {"hosts": dict.fromkeys(members)} for group, members in groups.items()}
    path = broken_file(lambda hosts: hosts["all"].update(children=children))
    lab.sh("node1", f"systemd-run --quiet --unit=squatter python3 -m http.server {port} && sleep 2")
    try:
        done = run_cli("apply", str(path), "--yes")
        changed = marked()
    finally:
        lab.sh("node1", "systemctl stop squatter")
    report = lab.last_report()

    assert done.returncode == 4, done.stdout + done.stderr
    assert str(port) in done.stdout
    assert "python3" in done.stdout
    assert {host["host"]: host["changed"] for host in report["hosts"]} == dict.fromkeys(NODES, 0)
    assert {phase["phase"]: phase["state"] for phase in report["phases"]}["gpu"] == "not_reached"
    assert changed == {node: [] for node in NODES}
