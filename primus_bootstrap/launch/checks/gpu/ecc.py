"""Check that no GPU has counted uncorrectable errors since the driver was loaded: AMD's RAS counters, NVIDIA's volatile counters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, Node, UnavailableError, list_names, pass_or_fail, require_text, skipped
from primus_bootstrap.launch.checks.vendors import check_each_gpu

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "https://docs.kernel.org/gpu/amdgpu/ras.html (ras/*_err_count: ue uncorrectable, de deferred, ce corrected)"
_NVIDIA = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (nvidia-smi: volatile counters)"
_FIX = "drain the node, reset the GPU or reboot, and repeat the check; replace the GPU if the error returns"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    folder = node.pci(gpu.address) / "ras"
    blocks = [name for name in list_names(folder) if name.endswith("_err_count")]
    if not blocks:
        if gpu.virtual:
            return skipped("a virtual function has no error counters", device=gpu.address)
        raise UnavailableError("the driver has no error counters: RAS is off or not supported", fix="see `dmesg | grep -i ras`")
    bad: list[str] = []
    corrected = 0
    for block in blocks:
        counts = dict(re.findall(r"^(ue|ce|de):\s*(\d+)", require_text(folder / block), re.MULTILINE))
        if not {"ue", "ce"} <= counts.keys():
            raise UnavailableError(f"{folder / block} has no ue and ce counters")
        corrected += int(counts["ce"])
        bad += [f"{block[: -len('_err_count')]} {kind} {counts[kind]}" for kind in ("ue", "de") if int(counts.get(kind, "0"))]
    found = ", ".join(bad) or f"0 ({corrected} corrected)"
    fields = {"device": gpu.address, "expected": "0", "found": found, "unit": "uncorrectable errors", "source": _AMD}
    return pass_or_fail(good=not bad, reason=f"uncorrectable or deferred errors: {found}", fix=_FIX, **fields)


def _nvidia(one: nvidia.SmiGpu) -> Verdict:
    fields = {"device": one.address, "serial": one.serial, "expected": "0", "unit": "uncorrectable errors", "source": _NVIDIA}
    mode = one.text("ecc_mode/current_ecc")
    if mode is None:
        return skipped("this GPU has no ECC", **fields)
    if mode != "Enabled":
        fix = "run nvidia-smi -e 1, then reset the GPU"
        return pass_or_fail(good=False, reason="ECC is off, so errors are not detected", fix=fix, found=mode, **fields)
    counts = [
        (name, one.number(f"ecc_errors/volatile/{name}")) for name, _ in one.children("ecc_errors/volatile") if "uncorrectable" in name
    ]
    if not counts:
        raise UnavailableError("nvidia-smi reports no counters of uncorrectable errors", fix=f"nvidia-smi -q -d ECC -i {one.address}")
    bad = ", ".join(f"{name} {count:g}" for name, count in counts if count)
    return pass_or_fail(good=not bad, reason=f"uncorrectable errors: {bad}", fix=_FIX, found=bad or "0", **fields)


CHECK = Check(
    "gpu_ecc",
    "No GPU has counted an uncorrectable memory or RAS error, and ECC is on.",
    "AMD: ras/*_err_count in sysfs; NVIDIA: nvidia-smi",
    check_each_gpu(_amd, _nvidia, (_AMD, _NVIDIA)),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
