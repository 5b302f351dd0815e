"""Has a GPU counted errors that it could not correct? AMD's RAS counters, NVIDIA's volatile ones: both since the driver loaded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, CannotTellError, Check, judged, listed, skipped, text_of, unknown
from primus_bootstrap.launch.checks.vendors import each_gpu

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "https://docs.kernel.org/gpu/amdgpu/ras.html (ras/*_err_count: ue uncorrectable, de deferred, ce corrected)"
_NVIDIA = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (nvidia-smi: volatile counters)"
_FIX = "drain the node, reset the GPU or reboot, and look again; have the GPU replaced where it comes back"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    folder = node.pci(gpu.address) / "ras"
    blocks = [name for name in listed(folder) if name.endswith("_err_count")]
    if not blocks:
        if gpu.virtual:
            return skipped("a virtual function counts no errors of its own", device=gpu.address)
        raise CannotTellError("the driver counts no errors: RAS is off or not supported", fix="see `dmesg | grep -i ras`")
    bad: list[str] = []
    corrected = 0
    for block in blocks:
        counts = dict(re.findall(r"^(ue|ce|de):\s*(\d+)", text_of(folder / block), re.MULTILINE))
        if not {"ue", "ce"} <= counts.keys():
            raise CannotTellError(f"{folder / block} cannot be read as counters")
        corrected += int(counts["ce"])
        bad += [f"{block[: -len('_err_count')]} {kind} {counts[kind]}" for kind in ("ue", "de") if int(counts.get(kind, "0"))]
    found = ", ".join(bad) or f"0 ({corrected} corrected)"
    fields = {"device": gpu.address, "expected": "0", "found": found, "unit": "uncorrectable errors", "source": _AMD}
    return judged(good=not bad, reason=f"uncorrectable or deferred errors: {found}", fix=_FIX, **fields)


def _nvidia(one: nvidia.Smi) -> Verdict:
    fields = {"device": one.address, "serial": one.serial, "expected": "0", "unit": "uncorrectable errors", "source": _NVIDIA}
    try:
        mode = one.text("ecc_mode/current_ecc")
        if mode is None:
            return skipped("this GPU has no ECC", **fields)
        if mode != "Enabled":
            return judged(
                good=False, reason="ECC is off: errors are not seen", fix="nvidia-smi -e 1, then reset the GPU", found=mode, **fields
            )
        counts = [
            (name, one.number(f"ecc_errors/volatile/{name}")) for name, _ in one.below("ecc_errors/volatile") if "uncorrectable" in name
        ]
    except CannotTellError as error:
        return unknown(error.reason, fix=error.fix, **fields)
    if not counts:
        return unknown("nvidia-smi shows no counters of uncorrectable errors", fix=f"nvidia-smi -q -d ECC -i {one.address}", **fields)
    bad = ", ".join(f"{name} {count:g}" for name, count in counts if count)
    return judged(good=not bad, reason=f"uncorrectable errors: {bad}", fix=_FIX, found=bad or "0", **fields)


CHECK = Check(
    "gpu_ecc",
    "No GPU has counted an uncorrectable memory or RAS error, and ECC is on.",
    "AMD: ras/*_err_count in sysfs; NVIDIA: nvidia-smi",
    each_gpu(_amd, _nvidia, amd_source=_AMD),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
