"""primus_bootstrap.launch.checks.host: what each check says of the machine around the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks.host.kernel_messages import judge_lines
from primus_bootstrap.launch.checks.limits import table
from tests.unit.checks_rig import ACS_REDIRECTS, amd_machine, config_space, plain_machine

if TYPE_CHECKING:
    from pathlib import Path

EDAC = "sys/devices/system/edac/mc/mc0"
MOUNTS = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 {0},errors=remount-ro\n30 22 7:0 / /snap/x ro - squashfs /dev/loop0 ro"


def test_an_expected_version_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """Without DMI nobody knows the firmware's version: no pass and no fail."""
    machine = plain_machine(tmp_path)
    machine.values["bios"] = "1.7.5"
    (machine.root / "sys/class/dmi/id/bios_version").unlink()

    assert machine.look("bios_version")[0].verdict == "unknown"


def test_a_file_system_that_fstab_wants_read_only_is_no_fault(tmp_path: Path) -> None:
    """Only what the kernel has made read-only is."""
    machine = plain_machine(tmp_path)
    machine.write("proc/1/mountinfo", MOUNTS.format("ro"))
    machine.write("etc/fstab", "# root\n/dev/sda1 / ext4 ro,errors=remount-ro 0 1")

    assert machine.look("disk_writable")[0].verdict == "pass"


def test_a_bridge_that_redirects_fails(tmp_path: Path) -> None:
    """ACS redirection above one GPU is found in the bridge's configuration space; without root it is unknown."""
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
def test_each_kind_of_message_is_found_by_its_own_patterns(kind: str) -> None:
    """A line of broken hardware belongs to its kind and to no other; more lines than are allowed fail."""
    kinds = table("kernel_messages")
    lines = [LINES[kind]] * (int(kinds[kind].get("most", 0)) + 1)
    found = {name for name, entry in kinds.items() if judge_lines(lines, entry, "1 h").verdict == "fail"}

    assert (found, set(LINES)) == ({kind}, set(kinds))


HARMLESS = [
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=1234, name=python, Ch 00000008, MMU Fault",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    "amdgpu 0000:05:00.0: amdgpu: 0 uncorrectable hardware errors detected in total in umc block",
    "nvme nvme0: 96/0/0 default/read/poll queues",
]


def test_corrected_errors_and_faults_of_programs_are_no_broken_hardware() -> None:
    """Lines that healthy nodes print accuse nothing."""
    found = {name for name, entry in table("kernel_messages").items() if judge_lines(HARMLESS, entry, "1 h").verdict != "pass"}

    assert found == set()


def test_in_a_container_the_machine_is_not_judged(tmp_path: Path) -> None:
    """Log, clock, disks and swap are those of the machine below."""
    machine = amd_machine(tmp_path)
    machine.write("run/systemd/container", "podman")
    found = {name: machine.look(name)[0] for name in ("kernel_gpu", "clock", "swap", "nvme_state", "disk_space", "acs", "iommu")}

    assert {record.verdict for record in found.values()} == {"skipped"}
    assert found["clock"].reason == "it is the machine's below this podman container"
