"""Measures the controller's processor time for `node add`, by the size of the cluster.

One test adds a GPU node to the lab. The other measures the parts of `node add` that depend on the fleet's size, without a node:
everything before the first connection, and the configuration of Slurm's controllers.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from tests.lab.lab_rig import run_cli
from tests.unit.slurm_rig import fragment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.perf, pytest.mark.timeout(3600)]

SIZES = (10, 100, 1_000)
ROUNDS = 3
MAX_RATIO = 1.2
MAX_GROWTH_S = 3.0
NEW = "node3"


def _hosts_yaml(lab: RunningLab, count: int) -> str:
    """Return a cluster of this many hosts, of which only those of the lab exist."""
    numbers = range(1, count)
    fleet = [
        f"gpu{number:04}: {{ansible_host: 10.99.{number // 250}.{number % 250 + 1}, site_rack: r{number // 16}}}" for number in numbers
    ]
    hosts = [*fleet, f"node2: {{ansible_host: {lab.address('node2')}}}"]
    names = [line.partition(":")[0] for line in hosts]
    keys = lab.state_dir
    return "\n".join(
        [
            "all:",
            "  vars:",
            "    cluster_name: grown",
            "    ansible_user: primus",
            f"    ansible_ssh_private_key_file: {keys}/ssh/id_ed25519",
            f"    ansible_ssh_common_args: -o UserKnownHostsFile={keys}/known_hosts",
            "  hosts:",
            *(f"    {line}" for line in hosts),
            "  children:",
            "    gpu_node:",
            "      hosts:",
            *(f"        {name}:" for name in names),
            "",
        ]
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _add(lab: RunningLab, folder: Path, count: int) -> float:
    """Add the node to a cluster of this size; return the processor seconds."""
    (folder / "hosts.yaml").write_text(_hosts_yaml(lab, count), encoding="utf-8")
    before = _cpu_s()
    done = run_cli("node", "add", str(folder), NEW, "--host", lab.address(NEW), "--groups", "gpu_node", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    return _cpu_s() - before


@pytest.mark.lab
def test_node_add_is_independent_of_the_cluster_size(lab: RunningLab, tmp_path: Path) -> None:
    """With 1,000 hosts it takes at most 1.2 times as long as with 10 hosts; medians of three, sizes alternate."""
    folders = {count: tmp_path / str(count) for count in SIZES}
    for folder in folders.values():
        folder.mkdir()
    _add(lab, folders[SIZES[0]], SIZES[0])  # installs the node
    rounds = [{count: _add(lab, folder, count) for count, folder in folders.items()} for _ in range(ROUNDS)]

    costs = {count: statistics.median(measured[count] for measured in rounds) for count in SIZES}
    print(f"\nnode add, processor seconds of the controller, median of {ROUNDS}")
    for count, cost in costs.items():
        print(f"  {count:>6,} hosts  {cost:6.2f} s  {cost / costs[SIZES[0]]:5.2f}x")
    assert costs[SIZES[-1]] <= MAX_RATIO * costs[SIZES[0]]


def _slurm_yaml(count: int, folder: Path) -> str:
    """Return a Slurm cluster with the shared file system. Its controller is this machine; the other hosts do not exist."""
    names = [f"gpu{number:04}" for number in range(1, count)]
    hosts = [
        f"{name}: {{ansible_host: 10.99.{number // 250}.{number % 250 + 1}, slurm_switch: leaf{number // 16}}}"
        for number, name in enumerate(names)
    ]
    local = f"ansible_connection: local, ansible_become: false, ansible_python_interpreter: {sys.executable}"
    lines = ["all:", "  vars:", "    cluster_name: grown", "    ansible_user: primus"]
    lines += [f"    {name}: \"{{{{ lookup('ansible.builtin.env', 'NO_SECRET') }}}}\"" for name in ("munge_key", "redis_password")]
    lines += ["  hosts:", f"    ctl1: {{ansible_host: 127.0.0.1, {local}}}", "    kv1: {ansible_host: 127.0.0.2}"]
    lines += [*(f"    {line}" for line in hosts), "  children:"]
    for group, members in {"slurm_controller": ["ctl1"], "redis": ["kv1"], "gpu_node": names, "juicefs_client": names}.items():
        lines += [f"    {group}:", "      hosts:", *(f"        {name}:" for name in members)]
    lines += ["    slurm_node: {children: {gpu_node: }}", ""]
    (folder / "nodes.d").mkdir()
    for number, name in enumerate(names):
        (folder / f"nodes.d/{name}.json").write_text(fragment(name, switch=f"leaf{number // 16}"), encoding="utf-8")
    return "\n".join(lines)


def _before_connection(folder: Path) -> None:
    """Run `node add` without a terminal: it reads, edits, validates and plans, and stops at the confirmation."""
    argv = [sys.executable, "-m", "primus_bootstrap", "node", "add", str(folder), "gpu9999", "--host", "10.99.200.9"]
    argv += ["--groups", "gpu_node,juicefs_client"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    assert "add --yes" in done.stderr, done.stderr
    assert "gpu9999: {ansible_host: 10.99.200.9}" in done.stderr


def _controller_configuration(folder: Path, *arguments: str) -> str:
    """Write slurm.conf of the fleet in check mode on this machine, with Ansible and local folders."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.yaml")]
    argv += [str(content.playbooks_dir() / "slurm/reconfigure.yml"), "--check", "-e", "node=gpu0001", *arguments]
    argv += ["-e", f"_slurm_descriptions_dir={folder}/nodes.d", "-e", f"_slurm_config_dir={folder}"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg())}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _part_cpu_s(part: Callable[..., object], folder: Path) -> float:
    before = _cpu_s()
    part(folder)
    return _cpu_s() - before


def test_the_cost_that_grows_with_the_fleet_is_small(tmp_path: Path) -> None:
    """With Slurm and the shared file system, these parts grow by at most three seconds from 10 to 1,000 hosts.

    hosts.yaml and slurm.conf are linear in the fleet. The test writes slurm.conf on this machine, a real run on Slurm's controller.
    The phases on the new node are not included; they do not depend on the size.
    """
    folders = {count: tmp_path / str(count) for count in SIZES}
    for count, folder in folders.items():
        folder.mkdir()
        (folder / "hosts.yaml").write_text(_slurm_yaml(count, folder), encoding="utf-8")
    parts: dict[str, Callable[..., object]] = {
        "before the first connection": _before_connection,
        "configuration of controllers": _controller_configuration,
    }
    rounds = [{(name, count): _part_cpu_s(part, folders[count]) for name, part in parts.items() for count in SIZES} for _ in range(ROUNDS)]
    costs = {key: statistics.median(measured[key] for measured in rounds) for key in rounds[0]}
    growth_s = sum(costs[name, SIZES[-1]] - costs[name, SIZES[0]] for name in parts)

    print(f"\nnode add with Slurm, processor seconds of the controller, median of {ROUNDS}")
    for (name, count), cost in costs.items():
        print(f"  {name:<32} {count:>6,} hosts  {cost:6.2f} s  {cost - costs[name, SIZES[0]]:+6.2f} s")
    assert _controller_configuration(folders[SIZES[-1]], "--diff").count("State=UNKNOWN") == SIZES[-1] - 1
    assert growth_s <= MAX_GROWTH_S
