"""Measures the controller's processor time for a probe of 200 loopback hosts, and compares it with OpenSSH."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.fleet.fanout import run_on_all
from primus_bootstrap.fleet.probe import probe_command, probe_input, probe_task, read_answer
from tests.integration.fleet_rig import LoopbackSshd, needs_sshd, sshd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primus_bootstrap.fleet.messages import Target

__all__ = ["sshd"]
pytestmark = [pytest.mark.perf, needs_sshd]
HOSTS = 200
LIMIT_MS = 15.0


@dataclass(frozen=True)
class Cost:
    """Processor and wall-clock time of a fan-out."""

    cpu_s: float
    wall_s: float


def measure(act: Callable[[], int], hosts: int) -> Cost:
    """Run a fan-out that must reach all hosts; return the times of this process and its children."""

    def cpu() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    before, started = cpu(), time.monotonic()

    assert act() == hosts

    return Cost(cpu() - before, time.monotonic() - started)


def by_openssh(targets: Sequence[Target], known_hosts: str) -> int:
    """Send the same script with one ssh per host, 20 at once, like Ansible's forks."""

    def one(target: Target) -> bool:
        options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={known_hosts}", "-o", "StrictHostKeyChecking=yes"]
        argv = ["ssh", *options, "-i", target.key_file, "-p", str(target.port), "-l", target.user, target.address, probe_command()]
        return subprocess.run(argv, input=probe_input(target), capture_output=True, text=True, check=False).returncode == 0

    with ThreadPoolExecutor(20) as pool:
        return sum(pool.map(one, targets))


def test_a_probe_takes_at_most_15_ms_per_host(sshd: LoopbackSshd, capsys: pytest.CaptureFixture[str]) -> None:
    """Including start-up, the processor time per host is below the limit and below OpenSSH's."""
    addresses = [f"127.0.{number // 100}.{number % 100 + 1}" for number in range(HOSTS)]
    targets = [sshd.target(f"host{number:03}", address) for number, address in enumerate(addresses)]
    file = sshd.known_hosts(*addresses)

    def by_fleet(selected: Sequence[Target]) -> Callable[[], int]:
        task = probe_task(selected, known_hosts=Path(file), timeout_s=120)
        return lambda: sum(read_answer(answer).facts is not None for answer in run_on_all(selected, task))

    start = measure(by_fleet(targets[:1]), 1)
    fleet = measure(by_fleet(targets), HOSTS)
    openssh = measure(lambda: by_openssh(targets, file), HOSTS)

    rows = [("probe", fleet), ("probe of one host", start), ("ssh, 20 at once", openssh)]
    with capsys.disabled():
        print(f"\n{'':20}{'CPU s':>8}{'ms/host':>9}{'wall s':>8}{'ratio':>7}   ({HOSTS} loopback hosts, {os.cpu_count()} cores)")
        for name, cost in rows:
            hosts = 1 if cost is start else HOSTS
            ratio = cost.cpu_s / hosts / (openssh.cpu_s / HOSTS)
            print(f"{name:20}{cost.cpu_s:8.2f}{1000 * cost.cpu_s / hosts:9.1f}{cost.wall_s:8.1f}{ratio:7.2f}")
    assert 1000 * fleet.cpu_s / HOSTS <= LIMIT_MS
    assert fleet.cpu_s < openssh.cpu_s
