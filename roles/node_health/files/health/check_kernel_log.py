"""Search the kernel log of this boot for messages about broken hardware. A log that cannot be read is unknown.

Corrected errors, and faults of programs on GPUs, are not among the patterns.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, container, finding, run, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from finding import Finding, Settings

# name, regular expression, source, fix
PATTERNS = (
    (
        "machine_check",
        r"Machine Check Exception|\[Hardware Error\]: (System Fatal error|Uncorrected|Deferred error)|event severity: (fatal|recoverable)",
        "Linux arch/x86/kernel/cpu/mce, drivers/edac/mce_amd.c, drivers/firmware/efi/cper.c",
        "drain the node; read the error with rasdaemon or the BMC's event log, and replace the part",
    ),
    (
        "memory",
        r"EDAC \S+: \d+ UE |Memory failure: 0x",
        "Linux drivers/edac/edac_mc.c, mm/memory-failure.c",
        "drain the node and replace the DIMM that the line names",
    ),
    (
        "amdgpu_ras",
        r"amdgpu.*([1-9]\d* (new )?uncorrectable hardware errors|RAS records:\s*\d+ exceed|device lost from bus|GPU reset.*failed)",
        "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_ras_eeprom.c, amdgpu_device.c",
        "drain the node; see `amd-smi metric --ecc`; reset the GPU, and replace it if the error comes back",
    ),
    (
        "nvswitch",
        r"SXid.*\bFatal\b",
        "NVIDIA Fabric Manager user guide, SXid errors",
        "drain the node, reset GPUs and switches, and see the Fabric Manager's log",
    ),
    (
        "pci_express",
        r"PCIe Bus Error: severity=Uncorrect\w+ \(Fatal\)",
        "Linux drivers/pci/pcie/aer.c",
        "drain the node; reseat the device that the line names",
    ),
    (
        "file_system",
        r"EXT4-fs.*Remounting filesystem read-only|XFS.*[Ff]ile ?system has been shut down|nvme\S*: Removing after probe failure",
        "Linux fs/ext4/super.c, fs/xfs, drivers/nvme/host/core.c",
        "drain the node; check the disk (smartctl, nvme smart-log), then the file system",
    ),
    (
        "disk",
        r"critical medium error, dev |md/raid\d*:\S+: Disk failure on ",
        "Linux block/blk-core.c, drivers/md/raid1.c, raid5.c, raid10.c",
        "drain the node; check the disk that the line names (smartctl, /proc/mdstat) and replace it",
    ),
)
XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")
XID_SOURCE = "https://docs.nvidia.com/deploy/xid-errors/"


def check(settings: Settings) -> Iterator[Finding]:
    """Check the lines of the last `window_s`; `xids`, `patterns` (name, pattern, fix) and `ignore` come from hosts.yaml."""
    kind = container(settings.get("root", "/"))
    if kind:
        yield finding("kernel_log", SKIPPED, reason=f"the kernel log is that of the host of this {kind} container")
        return
    since = time.time() - settings["window_s"]
    lines = read_log()
    if isinstance(lines, str):
        fix = "run `journalctl -k -b` and `dmesg` as root on this host and correct the error"
        yield finding("kernel_log", UNKNOWN, source="journalctl -k, dmesg", reason=f"the kernel log cannot be read: {lines}", fix=fix)
        return
    yield from check_lines([line for at, line in lines if at >= since], settings)


def check_lines(lines: Iterable[str], settings: Settings) -> Iterator[Finding]:
    """Yield one record for each kind of error, with its latest line; or one pass."""
    ignored = [re.compile(pattern) for pattern in settings["ignore"]]
    site = tuple((entry["name"], entry["pattern"], "node_health_kernel_log_patterns", entry["fix"]) for entry in settings["patterns"])
    known = [(name, re.compile(pattern), source, fix) for name, pattern, source, fix in (*PATTERNS, *site)]
    found: dict[tuple[str, str, str, str], list[str]] = {}
    count = 0
    for line in lines:
        count += 1
        if any(pattern.search(line) for pattern in ignored):
            continue
        for name, pattern, source, fix in known:
            if pattern.search(line):
                found.setdefault((name, "", source, fix), []).append(line)
        xid = XID.search(line)
        if xid and int(xid.group(2)) in settings["xids"]:
            fix = f"drain the node; see Xid {xid.group(2)} in {XID_SOURCE}, and reset or replace the GPU"
            found.setdefault((f"xid_{xid.group(2)}", xid.group(1), XID_SOURCE, fix), []).append(line)
    hours = f"{settings['window_s'] / 3600:g} h"
    for (name, device, source, fix), hits in found.items():
        reason = f"{len(hits)} times in {hours}, last: {hits[-1].strip()[:160]}"
        yield finding(
            f"kernel_log_{name}", FAIL, device=device, expected="none", found=len(hits), unit="lines", source=source, reason=reason, fix=fix
        )
    if not found:
        yield finding(
            "kernel_log", PASS, expected="no message about broken hardware", found=f"none in {count} lines of {hours}", source="patterns"
        )


def read_log() -> list[tuple[float, str]] | str:
    """Return the lines of this boot with their time (seconds since the epoch), or the reason (a text) why there are none."""
    journal = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-unix", "--lines=100000"]
    status, first = run(journal)
    lines = list(_journal_lines(first)) if status == 0 else []
    if lines:
        return lines
    # The journal may not have the kernel log; dmesg does. It may print the caller ([T1]) after the time.
    status, second = run(["dmesg"])
    started = time.time() - float(Path("/proc/uptime").read_text("utf-8").split()[0])
    lines = [
        (started + float(match.group(1)), match.group(2))
        for match in map(re.compile(r"\[\s*([0-9.]+)\](?:\[[^\]]*\])? (.*)").match, second.splitlines())
        if match
    ]
    if status == 0 and lines:
        return lines
    return " / ".join(text.splitlines()[-1][:100] for text in (first, second) if text) or "both are empty"


def _journal_lines(text: str) -> Iterator[tuple[float, str]]:
    for line in text.splitlines():
        at, _, rest = line.partition(" ")
        try:
            yield float(at), rest
        except ValueError:
            continue  # a continued line, or a separator such as `-- Boot ... --`


if __name__ == "__main__":
    serve(check)
