"""Peak dense BF16 speed of devices and its source. Devices that are not listed, and partitions of a device, have no peak.

Vendors also print the peak with 2:4 sparsity, which is twice as high. In torch, one half (GCD) of an MI250X is a device. All values were
retrieved in November 2026.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_AMD = "https://www.amd.com/en/products/accelerators/instinct"
_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_CDNA = "dense matrix BF16 = compute units x FLOPs a clock x peak clock"


@dataclass(frozen=True, slots=True)
class Peak:
    """A device's peak in TFLOP/s (10^12 per second), and its number of compute units (AMD) or multiprocessors (NVIDIA)."""

    device: str
    compute_units: int
    tflops: float
    source: str


PEAKS: tuple[Peak, ...] = (
    Peak(r"AMD Instinct MI250X.*", 110, 191.5, f"{_AMD}/mi200/mi250x.html (383 for both halves)"),
    Peak(r"AMD Instinct MI300X.*", 304, 1307.4, f"{_AMD}/mi300/mi300x.html; {_CDNA}: 304 x 2048 x 2.1 GHz"),
    Peak(r"AMD Instinct MI325X.*", 304, 1307.4, f"{_AMD}/mi300/mi325x.html; {_CDNA}: 304 x 2048 x 2.1 GHz"),
    Peak(r"AMD Instinct MI350X.*", 256, 2306.9, f"{_AMD}/mi350/mi350x.html; {_CDNA}: 256 x 4096 x 2.2 GHz"),
    Peak(r"AMD Instinct MI355X.*", 256, 2516.6, f"{_AMD}/mi350/mi355x.html; {_CDNA}: 256 x 4096 x 2.4 GHz"),
    Peak(r"NVIDIA A100.*", 108, 312.0, f"{_NVIDIA}/a100/ (624 with sparsity)"),
    Peak(r"NVIDIA H100 PCIe", 114, 756.0, f"{_NVIDIA}/h100/ (1,513 with sparsity)"),
    Peak(r"NVIDIA H100 NVL", 132, 835.0, f"{_NVIDIA}/h100/ (1,671 with sparsity)"),
    Peak(r"NVIDIA H100( SXM5)?( 64GB| 80GB| 96GB)?( HBM[23]e?)?", 132, 989.4, f"{_NVIDIA}/h100/ (1,979 with sparsity)"),
    Peak(r"NVIDIA H200", 132, 989.4, f"{_NVIDIA}/h200/ (1,979 with sparsity)"),
    Peak(r"NVIDIA B200.*", 148, 2250.0, "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703 (4,500 with sparsity)"),
)


def find_peak(device: str, compute_units: int, precision: str) -> Peak | None:
    """Return the peak of a whole device for `bf16`, or None: another precision, an unknown device, or a partition of one (CPX, MIG)."""
    if precision != "bf16":
        return None
    return next((peak for peak in PEAKS if re.fullmatch(peak.device, device) and peak.compute_units == compute_units), None)
