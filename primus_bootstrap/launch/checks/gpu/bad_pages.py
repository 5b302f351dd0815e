"""Check that no GPU has memory pages whose retirement is pending or has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, Node, UnavailableError, pass_or_fail, require_text, skipped
from primus_bootstrap.launch.checks.vendors import check_each_gpu

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "https://docs.kernel.org/gpu/amdgpu/ras.html (gpu_vram_bad_pages: R reserved, P pending, F could not be reserved)"
_NVIDIA = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (row remapping)"
_PENDING = "drain the node, then reset the GPU or reboot: this retires the memory"
_FAILED = "drain the node and replace the GPU: it cannot retire more memory"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    path = node.pci(gpu.address) / "ras" / "gpu_vram_bad_pages"
    if not path.exists():
        return skipped("the driver has no list of bad pages for this GPU", device=gpu.address)
    marks = []
    for line in require_text(path).splitlines():
        parts = [part.strip() for part in line.split(":")]
        if len(parts) != 3 or parts[2] not in ("R", "P", "F"):
            raise UnavailableError(f"{path} is not a list of bad pages: {line[:60]!r}")
        marks.append(parts[2])
    pending, failed = marks.count("P"), marks.count("F")
    return _verdict(gpu.address, "", f"{len(marks)} retired, {pending} pending, {failed} failed", bool(pending), bool(failed), _AMD)


def _nvidia(one: nvidia.SmiGpu) -> Verdict:
    try:
        pending, failed = (one.text(f"remapped_rows/remapped_row_{name}") for name in ("pending", "failure"))
    except UnavailableError:
        if one.element.findtext("remapped_rows", "").strip().lower() == "n/a":
            return skipped("this GPU does not remap rows", device=one.address, serial=one.serial)
        raise
    if pending is None or failed is None:
        return skipped("this GPU does not remap rows", device=one.address, serial=one.serial)
    return _verdict(one.address, one.serial, f"pending {pending}, failed {failed}", pending != "No", failed != "No", _NVIDIA)


def _verdict(device: str, serial: str, found: str, pending: bool, failed: bool, source: str) -> Verdict:  # noqa: FBT001, PLR0913, PLR0917
    reason = "the GPU could not retire faulty memory" if failed else "the GPU retires faulty memory only after a reset"
    fields = {"device": device, "serial": serial, "expected": "none pending, none failed", "found": found, "source": source}
    return pass_or_fail(good=not (pending or failed), reason=reason, fix=_FAILED if failed else _PENDING, **fields)


CHECK = Check(
    "gpu_bad_pages",
    "No GPU has memory whose retirement is pending or has failed.",
    "AMD: ras/gpu_vram_bad_pages in sysfs; NVIDIA: nvidia-smi",
    check_each_gpu(_amd, _nvidia, (_AMD, _NVIDIA)),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
