"""Check that no PCI Express switch redirects traffic between GPUs and network cards to the processor (ACS redirection)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, MACHINE, Check, Node, UnavailableError, Verdicts, pass_or_fail, skipped, unknown

if TYPE_CHECKING:
    from pathlib import Path


_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI Access Control Services)"
# Linux include/uapi/linux/pci_regs.h: PCI_EXT_CAP_ID_ACS, PCI_ACS_CTRL, PCI_ACS_RR, PCI_ACS_CR, PCI_CFG_SPACE_SIZE, PCI_CFG_SPACE_EXP_SIZE.
_ACS, _CONTROL, _REQUESTS, _COMPLETIONS = 0x0D, 6, 0x04, 0x08
_FIRST, _SIZE = 0x100, 4096
_FIX = "disable ACS in the firmware or with setpci at boot; keep it enabled if virtual machines use the GPUs"


def _check(node: Node) -> Verdicts:
    bridges = sorted({bridge for gpu in node.gpu_findings.gpus for bridge in gpu.path[1:-1]})
    if not bridges:
        yield skipped("no GPU is connected through a PCI Express bridge")
    for bridge in bridges:
        fields = {"device": bridge, "expected": "no redirection", "source": _SOURCE}
        try:
            control = acs_control(node.pci(bridge) / "config")
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, **fields)
            continue
        if control is None:
            yield skipped("this bridge has no ACS", **fields)
            continue
        bad = bool(control & (_REQUESTS | _COMPLETIONS))
        found = f"control {control:#06x}"
        yield pass_or_fail(
            good=not bad, reason="the bridge redirects peer-to-peer traffic to the processor", fix=_FIX, found=found, **fields
        )


def acs_control(config: Path) -> int | None:
    """Return the control word of a device's ACS capability, or None if it has none.

    Raises:
        UnavailableError: The configuration space cannot be read completely.
    """
    try:
        data = config.read_bytes()
    except OSError as error:
        raise UnavailableError(f"{config} cannot be read: {error.strerror}", fix="run as root") from error
    if len(data) < _FIRST:
        raise UnavailableError(f"{config} shows {len(data)} of {_SIZE} bytes", fix="run as root")
    at = _FIRST
    for _ in range(_SIZE // 8):  # limits the loop if a broken chain is circular
        if len(data) < at + 8 or at < _FIRST:
            return None
        (header,) = struct.unpack_from("<I", data, at)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", data, at + _CONTROL)[0])
        at = header >> 20
    return None


CHECK = Check(
    "acs",
    "No PCIe switch above a GPU redirects peer-to-peer traffic to the processor.",
    "config space in sysfs",
    _check,
    needs=(MACHINE, GPU),
)
