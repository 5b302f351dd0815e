"""Has the kernel reported broken hardware lately? Looks for patterns in the log of this boot; what nobody can read is unknown.

Only what means broken hardware is a pattern: a corrected error, or a fault of a program on a GPU, is none.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, ask, container, finding, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from finding import Finding, Settings

# name, regular expression, source, how to mend it
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
        "drain the node; see `amd-smi metric --ecc`; reset the GPU, and replace it where it comes back",
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


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge the lines of the last `window_s`; `xids`, `patterns` (name, pattern, fix) and `ignore` are the site's."""
    kind = container(settings.get("root", "/"))
    if kind:
        yield finding("kernel_log", SKIPPED, reason=f"the kernel log belongs to the machine below this {kind} container")
        return
    since = time.time() - settings["window_s"]
    lines = read_log()
    if isinstance(lines, str):
        fix = "run `journalctl -k -b` and `dmesg` as root on this host and see why they give nothing"
        yield finding("kernel_log", UNKNOWN, source="journalctl -k, dmesg", reason=f"the kernel log cannot be read: {lines}", fix=fix)
        return
    yield from judge_lines([line for at, line in lines if at >= since], settings)


def judge_lines(lines: Iterable[str], settings: Settings) -> Iterator[Finding]:
    """Yield one record for each kind of error that was found, with its latest line; or one pass."""
    ignored = [re.compile(pattern) for pattern in settings["ignore"]]
    own = tuple((entry["name"], entry["pattern"], "node_health_kernel_log_patterns", entry["fix"]) for entry in settings["patterns"])
    known = [(name, re.compile(pattern), source, fix) for name, pattern, source, fix in (*PATTERNS, *own)]
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
            fix = f"drain the node; look Xid {xid.group(2)} up in NVIDIA's catalogue, and reset or replace the GPU"
            found.setdefault((f"xid_{xid.group(2)}", xid.group(1), XID_SOURCE, fix), []).append(line)
    hours = f"{settings['window_s'] / 3600:g} h"
    for (name, device, source, fix), hits in found.items():
        reason = f"{len(hits)} x in {hours}, the last: {hits[-1].strip()[:160]}"
        yield finding(
            f"kernel_log_{name}", FAIL, device=device, expected="none", found=len(hits), unit="lines", source=source, reason=reason, fix=fix
        )
    if not found:
        yield finding(
            "kernel_log", PASS, expected="no line of broken hardware", found=f"none in {count} lines of {hours}", source="patterns"
        )


def read_log() -> list[tuple[float, str]] | str:
    """Return the lines of this boot with their time (seconds since the epoch); a text is the reason why there are none."""
    journal = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-unix", "--lines=100000"]
    status, first = ask(journal)
    lines = list(_journal_lines(first)) if status == 0 else []
    if lines:
        return lines
    # A journal that is kept nowhere, or not for the kernel: ask the kernel itself, which may name the caller ([T1]) behind the time.
    status, second = ask(["dmesg"])
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
            continue  # a continued line, or a mark such as `-- Boot ... --`


if __name__ == "__main__":
    serve(judge)
