"""primus_bootstrap.launch.checks.host on file trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks.host.kernel_messages import check_lines
from primus_bootstrap.launch.checks.limits import table
from tests.unit.checks_rig import ACS_REDIRECTS, amd_machine, config_space, plain_machine

if TYPE_CHECKING:
    from pathlib import Path

EDAC = "sys/devices/system/edac/mc/mc0"
MOUNTS = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 {0},errors=remount-ro\n30 22 7:0 / /snap/x ro - squashfs /dev/loop0 ro"


# The checks of disks start a tool: tests/integration/test_checks_host_real.py.
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
    ("memory_size", {"ram_gib": 2048}, "fail"),
]


@pytest.mark.parametrize(("record", "values", "verdict"), EXPECTED)
def test_the_inventory_overrides_the_default(record: str, values: dict[str, object], verdict: str, tmp_path: Path) -> None:
    """The record names the inventory as its source."""
    machine = plain_machine(tmp_path)
    machine.values.update(values)
    first = machine.records(record)[0]

    assert (first.verdict, "the test" in first.source) == (verdict, True)


def test_an_expected_version_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """Without DMI the firmware's version is not known."""
    machine = plain_machine(tmp_path)
    machine.values["bios"] = "1.7.5"
    (machine.root / "sys/class/dmi/id/bios_version").unlink()

    assert machine.records("bios_version")[0].verdict == "unknown"


def test_a_file_system_that_is_read_only_in_fstab_passes(tmp_path: Path) -> None:
    """Only file systems that the kernel made read-only fail."""
    machine = plain_machine(tmp_path)
    machine.write("proc/1/mountinfo", MOUNTS.format("ro"))
    machine.write("etc/fstab", "# root\n/dev/sda1 / ext4 ro,errors=remount-ro 0 1")

    assert machine.records("disk_writable")[0].verdict == "pass"


def test_a_bridge_with_acs_redirection_fails(tmp_path: Path) -> None:
    """An incomplete configuration space, as without root, is unknown; a bridge without ACS is skipped."""
    machine = amd_machine(tmp_path)
    machine.write_bytes(f"{machine.pci('0000:22:00.0')}/config", config_space(ACS_REDIRECTS))
    machine.write_bytes(f"{machine.pci('0000:42:00.0')}/config", config_space(0x11)[:64])
    machine.write_bytes(f"{machine.pci('0000:61:00.0')}/config", bytes(4096))
    found = machine.verdicts("acs")

    assert [found[name] for name in ("0000:22:00.0", "0000:42:00.0", "0000:61:00.0", "0000:81:00.0")] == [
        "fail",
        "unknown",
        "skipped",
        "pass",
    ]


LINES = {
    "gpu": "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "memory": "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#0_DIMM#0",
    "pci_express": "pcieport 0000:60:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
    "disk": "EXT4-fs (sda1): Remounting filesystem read-only",
    "network": "mlx5_core 0000:1a:00.0: poll_health: device's health compromised - reached miss count",
    "lockup": "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:4242]",
    "pci_express_corrected": "pcieport 0000:60:01.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer",
}


@pytest.mark.parametrize("kind", LINES)
def test_each_kind_of_message_matches_its_own_patterns_only(kind: str) -> None:
    """More lines than the limit of a kind fail."""
    kinds = table("kernel_messages")
    lines = [LINES[kind]] * (int(kinds[kind].get("most", 0)) + 1)
    found = {name for name, entry in kinds.items() if check_lines(lines, entry, "1 h").verdict == "fail"}

    assert (found, set(LINES)) == ({kind}, set(kinds))


HARMLESS = [
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=1234, name=python, Ch 00000008, MMU Fault",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    "amdgpu 0000:05:00.0: amdgpu: 0 uncorrectable hardware errors detected in total in umc block",
    "nvme nvme0: 96/0/0 default/read/poll queues",
    "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
    "NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x00000000e8e9b5c0) marked for remapping",
    "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
]
FATAL = [
    "NVRM: Xid (PCI:0000:dc:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000)",
    "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
]


def test_corrected_errors_and_program_faults_match_no_kind() -> None:
    """Healthy nodes also log such lines."""
    found = {name for name, entry in table("kernel_messages").items() if check_lines(HARMLESS, entry, "1 h").verdict != "pass"}

    assert found == set()


@pytest.mark.parametrize("line", FATAL)
def test_fatal_link_events_and_needed_actions_count(line: str) -> None:
    """A fatal NVLink event, and an action that the GPU needs for its recovery, fail kernel_gpu."""
    assert check_lines([line], table("kernel_messages")["gpu"], "1 h").verdict == "fail"


def test_needed_action_counts_until_it_is_none_again() -> None:
    """Only a later line of the same GPU withdraws it; the error that caused it still counts."""
    needed, other, none = (
        f"NVRM: Xid (PCI:0000:{gpu}:00): 154, GPU recovery action changed from {change}"
        for gpu, change in (
            ("18", "0x0 (None) to 0x4 (Drain and Reset)"),
            ("2a", "0x0 (None) to 0x4 (Drain and Reset)"),
            ("18", "0x4 (Drain and Reset) to 0x0 (None)"),
        )
    )
    kind = table("kernel_messages")["gpu"]
    found = [
        check_lines(lines, kind, "1 h").found for lines in ([needed, none], [needed, other, none], [none, needed], [needed, none, needed])
    ]
    lost = check_lines(["NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.", needed, none], kind, "1 h")

    assert found == ["0 of 2", "1 of 3", "1 of 2", "1 of 3"]
    assert (lost.verdict, lost.found) == ("fail", "1 of 3")


def test_checks_of_the_host_are_skipped_in_a_container(tmp_path: Path) -> None:
    """Log, clock, disks and swap belong to the host."""
    machine = amd_machine(tmp_path)
    machine.write("run/systemd/container", "podman")
    found = {name: machine.records(name)[0] for name in ("kernel_gpu", "clock", "swap", "nvme_state", "disk_space", "acs", "iommu")}

    assert {record.verdict for record in found.values()} == {"skipped"}
    assert found["clock"].reason == "this check runs on the host only, not in a container (podman)"
