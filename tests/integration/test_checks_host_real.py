"""primus_bootstrap.launch.checks.host on nodes with one fault, with real tools."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks.limits import table
from tests.unit.checks_rig import NVME_GOOD, plain_machine
from tests.unit.test_checks_host import LINES

if TYPE_CHECKING:
    from pathlib import Path


# content of the file `state` of a disk (None: the file is removed), verdict
STATES = [("dead", "fail"), (None, "unknown")]


@pytest.mark.parametrize(("state", "verdict"), STATES)
def test_a_disk_that_is_not_live_fails(state: str | None, verdict: str, tmp_path: Path) -> None:
    """A state that cannot be read is unknown."""
    machine = plain_machine(tmp_path)
    if state is None:
        (machine.root / "sys/class/nvme/nvme0/state").unlink()
    else:
        machine.write("sys/class/nvme/nvme0/state", state)
    record = next(record for record in machine.records("nvme_state") if record.verdict != "pass")

    assert (record.verdict, bool(record.fix)) == (verdict, True)


def test_the_number_of_disks_is_compared_with_the_expected_number(tmp_path: Path) -> None:
    """The record names the source of the number."""
    machine = plain_machine(tmp_path)
    machine.values["nvme_disks"] = 2
    first = machine.records("nvme_state")[0]

    assert (first.verdict, "the test" in first.source) == ("fail", True)


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
