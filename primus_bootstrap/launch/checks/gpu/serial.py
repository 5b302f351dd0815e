"""Does every GPU say who it is, and each something else? History and quarantine go by serial number, not by slot."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, judged, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_SOURCE = "AMD: serial_number, else unique_id (https://docs.kernel.org/gpu/amdgpu/driver-misc.html); NVIDIA: serial, else UUID"


def _look(node: Node) -> Iterator[Verdict]:
    serials = {gpu.address: _amd(node, gpu.address) for gpu in node.gpus_of("amd")}
    if node.gpus_of("nvidia"):
        serials.update({one.address: one.serial for one in nvidia.query(node)})
    met = Counter(serials.values())
    for address, serial in serials.items():
        fields = {"device": address, "serial": serial, "expected": "one of its own", "found": serial, "source": _SOURCE}
        if not serial:
            yield unknown("the driver shows no serial number", fix="see `amd-smi static --asic` or `nvidia-smi -q`", **fields)
            continue
        yield judged(
            good=met[serial] == 1, reason="another GPU has the same", fix="see `amd-smi static --asic` or `nvidia-smi -q`", **fields
        )


def _amd(node: Node, address: str) -> str:
    """Return the serial number; a die that has none of its own says zeros."""
    for name in ("serial_number", "unique_id"):
        text = sysfs.read_text(node.pci(address) / name) or ""
        if text.strip("0"):
            return text
    return ""


CHECK = Check(
    "gpu_serial",
    "Every GPU has a serial number of its own.",
    "AMD: serial_number and unique_id in sysfs; NVIDIA: nvidia-smi",
    _look,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
