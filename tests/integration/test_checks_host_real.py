"""primus_bootstrap.launch.checks.host on nodes with one fault, with real tools."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks.limits import table
from tests.unit.checks_rig import NVME_GOOD, plain_machine
from tests.unit.test_checks_host import EDAC, LINES, MOUNTS

if TYPE_CHECKING:
    from pathlib import Path


# record, path, its new content (None: the file is removed), verdict
WRONG = [
    ("memory_size", "proc/meminfo", "MemTotal: 1800000000 kB", "fail"),
    ("memory_size", "proc/meminfo", "nothing", "unknown"),
    ("memory_nodes", "sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 800000000 kB", "fail"),
    ("memory_nodes", "sys/devices/system/node/node1/meminfo", "", "unknown"),
    ("memory_nodes", "sys/devices/system/node/node1/cpulist", "", "skipped"),
    ("memory_errors", f"{EDAC}/ue_count", 1, "fail"),
    ("memory_errors", f"{EDAC}/ce_count", 11, "fail"),
    ("memory_errors", f"{EDAC}/ce_count", 9, "pass"),
    ("memory_errors", f"{EDAC}/ce_count", None, "unknown"),
    ("numa_balancing", "proc/sys/kernel/numa_balancing", 1, "fail"),
    ("numa_balancing", "proc/sys/kernel/numa_balancing", "?", "unknown"),
    ("numa_balancing", "proc/sys/kernel/numa_balancing", None, "skipped"),
    ("transparent_hugepages", "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never", "fail"),
    ("transparent_hugepages", "sys/kernel/mm/transparent_hugepage/enabled", "always madvise never", "unknown"),
    ("hugepages", "proc/meminfo", "MemTotal: 1000 kB\nHugetlb: 100 kB", "fail"),
    ("hugepages", "proc/meminfo", "MemTotal: 100000 kB\nHugePages_Total: 10\nHugepagesize: 2048 kB", "fail"),
    ("swap", "proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2", "fail"),
    ("swap", "proc/swaps", None, "unknown"),
    ("cpu_governor", "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave", "fail"),
    ("disk_writable", "proc/1/mountinfo", MOUNTS.format("ro"), "fail"),
    ("disk_writable", "proc/1/mountinfo", MOUNTS.format("rw"), "pass"),
    ("disk_writable", "proc/1/mountinfo", "rubbish", "unknown"),
    ("nvme_state", "sys/class/nvme/nvme0/state", "dead", "fail"),
    ("nvme_state", "sys/class/nvme/nvme0/state", None, "unknown"),
    ("kernel_taint", "proc/sys/kernel/tainted", 12289 | 1 << 4, "fail"),
    ("kernel_taint", "proc/sys/kernel/tainted", "", "unknown"),
]


@pytest.mark.parametrize(("record", "path", "content", "verdict"), WRONG, ids=[f"{row[0]}-{row[3]}-{i}" for i, row in enumerate(WRONG)])
def test_each_check_detects_its_fault(record: str, path: str, content: object, verdict: str, tmp_path: Path) -> None:
    """A value that cannot be read gives unknown."""
    machine = plain_machine(tmp_path)
    if content is None:
        (machine.root / path).unlink()
    else:
        machine.write(path, content)
    found = machine.records(record)
    worst = next((item for item in found if item.verdict != "pass"), found[0])

    assert worst.verdict == verdict
    assert bool(worst.fix) == (verdict in {"fail", "unknown"})


EXPECTED = [
    ("numa_balancing", {"numa_balancing": True}, "fail"),
    ("transparent_hugepages", {"transparent_hugepages": "madvise"}, "fail"),
    ("cpu_governor", {"cpu_governor": "schedutil"}, "fail"),
    ("kernel_version", {"kernel": "6.8.0-61-generic"}, "fail"),
    ("kernel_version", {"kernel": "6.8.0-60-generic"}, "pass"),
    ("bios_version", {"bios": "1.7.5"}, "pass"),
    ("nvme_state", {"nvme_disks": 2}, "fail"),
    ("memory_size", {"ram_gib": 2048}, "fail"),
]


@pytest.mark.parametrize(("record", "values", "verdict"), EXPECTED)
def test_the_inventory_overrides_the_default(record: str, values: dict[str, object], verdict: str, tmp_path: Path) -> None:
    """The record names the inventory as its source."""
    machine = plain_machine(tmp_path)
    machine.values.update(values)
    first = machine.records(record)[0]

    assert (first.verdict, "the test" in first.source) == (verdict, True)


SMART = [
    (NVME_GOOD, "pass"),
    ('{"critical_warning": 4, "media_errors": 0, "percent_used": 3}', "fail"),
    ('{"critical_warning": 0, "media_errors": 7, "percent_used": 3}', "fail"),
    ('{"critical_warning": 0, "media_errors": 0, "percentage_used": 101}', "fail"),
    ('{"critical_warning": 0}', "unknown"),
    ("Permission denied", "unknown"),
]


@pytest.mark.parametrize(("text", "verdict"), SMART)
def test_smart_values_give_the_verdict_of_a_disk(text: str, verdict: str, tmp_path: Path) -> None:
    """A warning, media errors or wear fail; other output is unknown; the record contains the disk's serial number."""
    machine = plain_machine(tmp_path)
    machine.print_from("nvme", text)
    (record,) = machine.records("nvme_smart")

    assert (record.verdict, record.device, record.serial) == (verdict, "nvme0", "S6XX")


def test_without_the_nvme_tool_only_the_smart_values_are_unknown(tmp_path: Path) -> None:
    """The state is read from sysfs."""
    machine = plain_machine(tmp_path)
    (machine.tools / "nvme").unlink()

    assert (machine.records("nvme_state")[0].verdict, machine.records("nvme_smart")[0].fix) == ("pass", "install nvme-cli")


CLOCKS = [
    ("Leap status : Normal\nSystem time : 2.5 seconds fast of NTP time", "fail", "2.5"),
    ("Leap status : Not synchronised\nSystem time : 0.0 seconds fast of NTP time", "unknown", "Not synchronised"),
    ("506 Cannot talk to daemon", "unknown", ""),
]


@pytest.mark.parametrize(("text", "verdict", "found"), CLOCKS)
def test_a_clock_with_a_large_offset_fails(text: str, verdict: str, found: str, tmp_path: Path) -> None:
    """A clock without synchronization is unknown."""
    machine = plain_machine(tmp_path)
    machine.print_from("chronyc", text)
    (record,) = machine.records("clock")

    assert (record.verdict, record.found) == (verdict, found)


@pytest.mark.parametrize(("answer", "verdict"), [("yes", "pass"), ("no", "unknown")])
def test_without_chrony_the_check_uses_timedatectl(answer: str, verdict: str, tmp_path: Path) -> None:
    """Only `yes` passes; other output is unknown."""
    machine = plain_machine(tmp_path)
    machine.tool("chronyc", "exit 1")
    machine.print_from("timedatectl", answer)

    assert machine.records("clock")[0].verdict == verdict


def test_the_kernel_log_is_read_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Xid of this boot fails kernel_gpu; the other kinds pass and state the number of lines."""
    machine = plain_machine(tmp_path)
    machine.print_from("journalctl", f"{time.time():.6f} node1 kernel: {LINES['gpu']}\n{time.time():.6f} node1 kernel: usb 1-1: new device")
    monkeypatch.setenv("PATH", f"{machine.tools}:{os.environ['PATH']}")
    gpu, memory = machine.records("kernel_gpu")[0], machine.records("kernel_memory")[0]

    assert (gpu.verdict, memory.verdict, memory.found) == ("fail", "pass", "0 of 2")
    assert "fallen off the bus" in gpu.reason


def test_an_empty_kernel_log_of_this_boot_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal contains kernel lines, but none of this boot."""
    machine = plain_machine(tmp_path)
    machine.tool("journalctl", 'case "$*" in *--lines=1*) echo x;; esac')
    monkeypatch.setenv("PATH", f"{machine.tools}:{os.environ['PATH']}")
    records = [machine.records(f"kernel_{name}")[0] for name in table("kernel_messages")]

    assert {record.verdict for record in records} == {"unknown"}
