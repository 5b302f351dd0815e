"""Check that every GPU has a unique serial number: history and quarantine identify GPUs by serial number, not by slot."""

from __future__ import annotations

from collections import Counter

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, Node, Verdicts, pass_or_fail, unknown
from primus_bootstrap.launch.detect import sysfs

_SOURCE = "AMD: serial_number, else unique_id (https://docs.kernel.org/gpu/amdgpu/driver-misc.html); NVIDIA: serial, else UUID"
_FIX = "compare with `amd-smi static --asic` or `nvidia-smi -q`"


def _check(node: Node) -> Verdicts:
    serials = {gpu.address: _amd(node, gpu.address) for gpu in node.gpus_of("amd")}
    if node.gpus_of("nvidia"):
        serials.update({one.address: one.serial for one in nvidia.query(node)})
    counts = Counter(serials.values())
    for address, serial in serials.items():
        fields = {"device": address, "serial": serial, "expected": "a unique serial number", "found": serial, "source": _SOURCE}
        if not serial:
            yield unknown("the driver reports no serial number", fix=_FIX, **fields)
            continue
        yield pass_or_fail(good=counts[serial] == 1, reason="another GPU has the same serial number", fix=_FIX, **fields)


def _amd(node: Node, address: str) -> str:
    """Return the serial number. A die without one reports zeros."""
    for name in ("serial_number", "unique_id"):
        text = sysfs.read_text(node.pci(address) / name) or ""
        if text.strip("0"):
            return text
    return ""


CHECK = Check(
    "gpu_serial",
    "Every GPU has a unique serial number.",
    "AMD: serial_number and unique_id in sysfs; NVIDIA: nvidia-smi",
    _check,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
