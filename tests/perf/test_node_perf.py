"""What one new node costs the controller, by the size of the cluster that it joins: processor time of the whole process tree."""

from __future__ import annotations

import resource
import statistics
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import run_cli

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.perf, pytest.mark.lab, pytest.mark.timeout(3600)]

SIZES = (10, 100, 1_000)
ROUNDS = 3
MOST = 1.2
NEW = "node3"


def _hosts_yaml(lab: RunningLab, count: int) -> str:
    """A cluster of this many hosts, each on a line of its own; only those of the lab exist."""
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
    """Add the node to a cluster of that size; return the processor seconds that it took."""
    (folder / "hosts.yaml").write_text(_hosts_yaml(lab, count), encoding="utf-8")
    before = _cpu_s()
    done = run_cli("node", "add", str(folder), NEW, "--host", lab.address(NEW), "--groups", "gpu_node", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    return _cpu_s() - before


def test_one_node_costs_the_same_in_a_cluster_of_any_size(lab: RunningLab, tmp_path: Path) -> None:
    """A cluster of 1,000 hosts costs at most 1.2 times what one of 10 costs; sizes in turn, medians of three."""
    folders = {count: tmp_path / str(count) for count in SIZES}
    for folder in folders.values():
        folder.mkdir()
    _add(lab, folders[SIZES[0]], SIZES[0])  # brings the node itself to its end state
    rounds = [{count: _add(lab, folder, count) for count, folder in folders.items()} for _ in range(ROUNDS)]

    costs = {count: statistics.median(one[count] for one in rounds) for count in SIZES}
    print(f"\nnode add, processor seconds of the controller, median of {ROUNDS}")
    for count, cost in costs.items():
        print(f"  {count:>6,} hosts  {cost:6.2f} s  {cost / costs[SIZES[0]]:5.2f}x")
    assert costs[SIZES[-1]] <= MOST * costs[SIZES[0]]
