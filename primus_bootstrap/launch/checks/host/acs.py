"""Does a PCI Express switch send traffic between GPUs and network cards up to the processor (ACS redirection)?"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, MACHINE, CannotTellError, Check, judged, skipped, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI Access Control Services)"
# Linux include/uapi/linux/pci_regs.h: PCI_EXT_CAP_ID_ACS, PCI_ACS_CTRL, PCI_ACS_RR, PCI_ACS_CR, PCI_CFG_SPACE_SIZE, PCI_CFG_SPACE_EXP_SIZE.
_ACS, _CONTROL, _REQUESTS, _COMPLETIONS = 0x0D, 6, 0x04, 0x08
_FIRST, _WHOLE = 0x100, 4096
_FIX = "switch ACS off in the firmware, or on bare metal by setpci at boot; virtual machines with a GPU of their own need it on"


def _look(node: Node) -> Iterator[Verdict]:
    bridges = sorted({bridge for gpu in node.gpu_findings.gpus for bridge in gpu.path[1:-1]})
    if not bridges:
        yield skipped("no GPU is behind a PCI Express bridge")
    for bridge in bridges:
        fields = {"device": bridge, "expected": "no redirection", "source": _SOURCE}
        try:
            control = acs_control(node.pci(bridge) / "config")
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, **fields)
            continue
        if control is None:
            yield skipped("this bridge has no ACS", **fields)
            continue
        bad = bool(control & (_REQUESTS | _COMPLETIONS))
        found = f"control {control:#06x}"
        yield judged(good=not bad, reason="it redirects traffic between devices to the processor", fix=_FIX, found=found, **fields)


def acs_control(config: Path) -> int | None:
    """Return the control word of a device's ACS capability, None where it has none.

    Raises:
        CannotTellError: Its configuration cannot be read as a whole.
    """
    try:
        data = config.read_bytes()
    except OSError as error:
        raise CannotTellError(f"{config} cannot be read: {error.strerror}", fix="run it as root") from error
    if len(data) < _FIRST:
        raise CannotTellError(f"{config} shows {len(data)} bytes of {_WHOLE}", fix="run it as root")
    at = _FIRST
    for _ in range(_WHOLE // 8):  # a broken chain may lead in a circle
        if len(data) < at + 8 or at < _FIRST:
            return None
        (header,) = struct.unpack_from("<I", data, at)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", data, at + _CONTROL)[0])
        at = header >> 20
    return None


CHECK = Check(
    "acs", "No PCIe switch above a GPU sends peer-to-peer traffic to the processor.", "config space in sysfs", _look, needs=(MACHINE, GPU)
)
