"""Does a GPU wait for a reset to retire memory, or could it not retire it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, CannotTellError, Check, judged, skipped, text_of, unknown
from primus_bootstrap.launch.checks.vendors import each_gpu

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "https://docs.kernel.org/gpu/amdgpu/ras.html (gpu_vram_bad_pages: R reserved, P pending, F could not be reserved)"
_NVIDIA = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (row remapping)"
_PENDING = "drain the node and reset the GPU or reboot: the memory is retired then"
_FAILED = "drain the node and have the GPU replaced: it has no spare memory left for what went bad"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    path = node.pci(gpu.address) / "ras" / "gpu_vram_bad_pages"
    if not path.exists():
        return skipped("the driver keeps no list of bad pages for this GPU", device=gpu.address)
    marks = []
    for line in text_of(path).splitlines():
        parts = [part.strip() for part in line.split(":")]
        if len(parts) != 3 or parts[2] not in ("R", "P", "F"):
            raise CannotTellError(f"{path} cannot be read as a list of pages: {line[:60]!r}")
        marks.append(parts[2])
    pending, failed = marks.count("P"), marks.count("F")
    return _record(gpu.address, "", f"{len(marks)} retired, {pending} pending, {failed} failed", bool(pending), bool(failed), _AMD)


def _nvidia(one: nvidia.Smi) -> Verdict:
    try:
        pending, failed = (one.text(f"remapped_rows/remapped_row_{name}") for name in ("pending", "failure"))
    except CannotTellError as error:
        if one.element.findtext("remapped_rows", "").strip().lower() == "n/a":
            return skipped("this GPU remaps no rows", device=one.address, serial=one.serial)
        return unknown(error.reason, fix=error.fix, device=one.address, serial=one.serial, source=_NVIDIA)
    if pending is None or failed is None:
        return skipped("this GPU remaps no rows", device=one.address, serial=one.serial)
    return _record(one.address, one.serial, f"pending {pending}, failed {failed}", pending != "No", failed != "No", _NVIDIA)


def _record(device: str, serial: str, found: str, pending: bool, failed: bool, source: str) -> Verdict:  # noqa: FBT001, PLR0913, PLR0917
    reason = "memory could not be retired" if failed else "memory waits for a reset to be retired"
    fields = {"device": device, "serial": serial, "expected": "none pending, none failed", "found": found, "source": source}
    return judged(good=not (pending or failed), reason=reason, fix=_FAILED if failed else _PENDING, **fields)


CHECK = Check(
    "gpu_bad_pages",
    "No GPU waits for a reset to retire memory, and none has failed to.",
    "AMD: ras/gpu_vram_bad_pages in sysfs; NVIDIA: nvidia-smi",
    each_gpu(_amd, _nvidia, amd_source=_AMD),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
