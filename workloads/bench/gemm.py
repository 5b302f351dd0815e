"""Measure matrix multiplication: TFLOP/s per GPU (or CPU), with operands that are not cached.

    torchrun … workloads/bench/gemm.py [--shapes llama-3.1-8b,4096x4096x4096 --dtypes bf16,fp8]

Shapes: a_MK @ b_KN = c_MN, 2*M*N*K floating-point operations (multiplications and additions).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from workloads.bench._options import DEVICE, REPEATS, TIMEOUT_S, WARM_UP
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.common.device import cold_bytes
from workloads.common.errors import SettingsError
from workloads.common.timing import time_samples

if TYPE_CHECKING:
    from collections.abc import Callable

Shape = tuple[int, int, int]

# M x N x K. M is 8192 tokens; N and K are those of a block's products: query, key and value together; attention output; gate and up of the
# feed-forward network together; down. Llama: arXiv:2407.21783, table 3. DeepSeek-V3: arXiv:2412.19437, section 4.2 (one expert).
SHAPES: dict[str, tuple[Shape, ...]] = {
    "square": ((8192, 8192, 8192),),
    "llama-3.1-8b": ((8192, 6144, 4096), (8192, 4096, 4096), (8192, 28672, 4096), (8192, 4096, 14336)),
    "llama-3.1-70b": ((8192, 10240, 8192), (8192, 8192, 8192), (8192, 57344, 8192), (8192, 8192, 28672)),
    "deepseek-v3-expert": ((8192, 4096, 7168), (8192, 7168, 2048)),
    "small": ((512, 512, 512),),
}
_GPU_SHAPES, _CPU_SHAPES = ("square", "llama-3.1-8b"), ("small",)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}
# The allowed relative error. Sums are fp32 and rounded once: the machine epsilon of the result's type, with margin for another order. The
# result of fp8 operands is bf16, and the reference uses the rounded operands.
_TOLERANCE = {"bf16": 2e-2, "fp16": 4e-3, "fp32": 1e-3, "fp8": 2e-2}


@dataclass(frozen=True, slots=True)
class GemmOptions:
    """The options."""

    shapes: tuple[str, ...] = field(
        default=("auto",),
        metadata={"help": f"MxNxK or a name: {', '.join(SHAPES)}; auto: {', '.join(_GPU_SHAPES)} on a GPU, small on a CPU"},
    )
    dtypes: tuple[str, ...] = field(
        default=("auto",),
        metadata={"help": f"some of {', '.join(_DTYPES)}; auto: those that the device supports", "words": ("auto", *_DTYPES)},
    )
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=10, metadata=WARM_UP)
    repeats: int = field(default=30, metadata=REPEATS)
    timeout_s: float = field(default=600.0, metadata=TIMEOUT_S)


def measure(options: GemmOptions, run: Run) -> None:
    """Measure every shape with every type."""
    # Otherwise the GPU may round fp32 operands to TF32: https://pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32".
    torch.set_float32_matmul_precision("highest")
    for dtype in _chosen_dtypes(options, run.device):
        for m, n, k in _chosen_shapes(options, run.device):
            with run.series("tflop_per_s", "TFLOP/s", "higher", {"m": m, "n": n, "k": k, "dtype": dtype}) as series:
                pairs = _operands((m, n, k), dtype, run.device)
                product = _product(pairs, dtype)
                correct = _is_correct(product(0), pairs[0], dtype)
                times_s = time_samples(product, run.device, warm_up=options.warm_up, repeats=options.repeats)
                series.done([2 * m * n * k / seconds / 1e12 for seconds in times_s], correct=correct)


def _operands(shape: Shape, dtype: str, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of operands, as many as exceed the cache, so that no operand is cached when it is used again."""
    m, n, k = shape
    kind = _fp8(device) if dtype == "fp8" else _DTYPES[dtype]
    count = max(2, -(-cold_bytes(device) // ((m * k + k * n) * kind.itemsize)))
    generator = torch.Generator(device).manual_seed(0)
    a_MK, b_KN = (torch.randn(size, device=device, generator=generator).to(kind) for size in ((m, k), (k, n)))
    all_a = a_MK.expand(count, m, k).contiguous()
    # The hardware requires the second fp8 operand in column-major order.
    all_b = b_KN.t().expand(count, n, k).contiguous().transpose(1, 2) if dtype == "fp8" else b_KN.expand(count, k, n).contiguous()
    return list(zip(all_a, all_b, strict=True))


def _product(pairs: list[tuple[torch.Tensor, torch.Tensor]], dtype: str) -> Callable[[int], torch.Tensor]:
    """Return the operation, which uses the next pair on each call."""
    device, (m, n) = pairs[0][0].device, (pairs[0][0].shape[0], pairs[0][1].shape[1])
    if dtype == "fp8":
        one = torch.ones((), device=device)

        def scaled(number: int) -> torch.Tensor:
            a_MK, b_KN = pairs[number % len(pairs)]
            return torch._scaled_mm(a_MK, b_KN, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: SLF001 - no public name yet

        return scaled
    c_MN = torch.empty(m, n, dtype=pairs[0][0].dtype, device=device)

    def plain(number: int) -> torch.Tensor:
        a_MK, b_KN = pairs[number % len(pairs)]
        return torch.matmul(a_MK, b_KN, out=c_MN)

    return plain


def _is_correct(c_MN: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], dtype: str) -> bool:
    """Return whether a corner of the product equals that in double precision, and the whole product is finite."""
    a_MK, b_KN = pair
    rows, columns = min(64, c_MN.shape[0]), min(64, c_MN.shape[1])
    expected = a_MK[:rows].double() @ b_KN[:, :columns].double()
    error = float((c_MN[:rows, :columns].double() - expected).norm() / expected.norm())
    return error < _TOLERANCE[dtype] and bool(torch.isfinite(c_MN).all())


def _chosen_shapes(options: GemmOptions, device: torch.device) -> list[Shape]:
    names = options.shapes if options.shapes != ("auto",) else (_GPU_SHAPES if device.type == "cuda" else _CPU_SHAPES)
    chosen: list[Shape] = []
    for name in names:
        numbers = re.fullmatch(r"(\d+)x(\d+)x(\d+)", name)
        if name not in SHAPES and not numbers:
            raise SettingsError(f"--shapes {name}: no such shape", fix=f"give MxNxK like 8192x4096x4096, or one of: {', '.join(SHAPES)}")
        chosen += SHAPES[name] if not numbers else [(int(numbers[1]), int(numbers[2]), int(numbers[3]))]
    return list(dict.fromkeys(chosen))


def _chosen_dtypes(options: GemmOptions, device: torch.device) -> tuple[str, ...]:
    unknown = [name for name in options.dtypes if name not in _DTYPES and options.dtypes != ("auto",)]
    if unknown:
        raise SettingsError(f"--dtypes {unknown[0]}: no such type", fix=f"choose from: {', '.join(_DTYPES)}")
    if options.dtypes != ("auto",):
        return options.dtypes
    if device.type != "cuda":
        return ("fp32", "bf16")
    if _has_fp8(device):
        return ("bf16", "fp16", "fp32", "fp8")
    print("gemm: skipped fp8, which this device does not support")
    return ("bf16", "fp16", "fp32")


def _has_fp8(device: torch.device) -> bool:
    """Return whether the matrix units support fp8.

    NVIDIA: compute capability 8.9 and later (https://docs.nvidia.com/cuda/cublas/, "cublasLtMatmul", FP8 kernels).
    AMD: gfx942 (MI300), gfx950 (MI350), gfx12 (https://rocm.docs.amd.com/en/latest/reference/precision-support.html).
    """
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.startswith(("gfx942", "gfx950", "gfx12"))
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _fp8(device: torch.device) -> torch.dtype:
    """Return the device's 8-bit type with 4 bits of exponent. On MI300 it has no negative zero (FNUZ, see AMD's page above)."""
    amd = device.type == "cuda" and torch.version.hip
    return torch.float8_e4m3fnuz if amd and torch.cuda.get_device_properties(device).gcnArchName.startswith("gfx942") else _DTYPES["fp8"]


BENCHMARK = Benchmark("gemm", "Measure matrix multiplication.", GemmOptions, measure)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
