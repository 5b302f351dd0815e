#!/usr/bin/python
"""Ansible module `gpu_driver_host`: read the facts that decide which GPU driver a host can have. Changes nothing.

ansible.builtin.setup and package_facts lack Secure Boot, NVSwitches and RDMA devices, and cannot read another root folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.container_kind import container_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], str]

CALL_S = 60.0
_NVIDIA, _BRIDGE = "0x10de", "0x0680"  # PCI vendor, and class 0680 (bridge, other): an NVSwitch
# The variable of the firmware: four bytes of attributes, then the value (UEFI specification, 3.3).
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def run_program(argv: Sequence[str]) -> str:
    """Return a program's output; empty if it does not exist or fails."""
    try:
        return run_command(argv, timeout_s=CALL_S).stdout
    except OSError:
        return ""


def read(path: Path) -> str:
    """Return a small file's text, stripped; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def os_release(text: str) -> dict[str, str]:
    """Return the fields of os-release(5)."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name: value.strip().strip("\"'") for name, _, value in pairs}


def secure_boot(root: Path) -> bool:
    """Return whether Secure Boot is on; False on hosts without UEFI."""
    try:
        return (root / _SECURE_BOOT).read_bytes()[4:5] == b"\x01"
    except OSError:
        return False


def nvswitches(root: Path) -> int:
    """Return the number of NVSwitches on the PCI bus."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    return sum(read(device / "vendor") == _NVIDIA and read(device / "class").startswith(_BRIDGE) for device in devices)


def reads_no_sources(dump: str) -> bool:
    """Return whether apt ignores sources.list.d, as the role airgap configures it; a package source there would have no effect."""
    return any(line.partition(" ")[2] == '"/dev/null";' for line in dump.splitlines() if line.lower().startswith("dir::etc::sourceparts "))


def read_facts(root: Path, kernel: str, machine: str, run: Runner) -> dict[str, Any]:
    """Return the facts of a host; tests set `root` to a folder with sys, run and etc."""
    system = os_release(read(root / "etc/os-release"))
    query = run(["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\n"])
    rows = (line.split() for line in query.splitlines())
    return {
        "kernel": read(root / "proc/sys/kernel/osrelease") or kernel,
        "architecture": machine,
        "distribution": system.get("ID", ""),
        "version": system.get("VERSION_ID", ""),
        "codename": system.get("VERSION_CODENAME", ""),
        "container": container_kind(root),
        "secure_boot": secure_boot(root),
        "nvswitches": nvswitches(root),
        "closed": reads_no_sources(run(["apt-config", "dump", "Dir::Etc::SourceParts"])),
        "installed": {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "installed"},
        "rdma_devices": sorted(path.name for path in (root / "sys/class/infiniband").glob("*")),
    }


def main() -> None:
    """Return the facts as `host`."""
    module = AnsibleModule(argument_spec={"sysfs_root": {"type": "path", "required": True}}, supports_check_mode=True)
    system = os.uname()
    module.exit_json(changed=False, host=read_facts(Path(module.params["sysfs_root"]), system.release, system.machine, run_program))


if __name__ == "__main__":
    main()
