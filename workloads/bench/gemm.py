"""Measure matrix multiplication: TFLOP/s of one device a rank, with operands that do not stay in its caches.

    torchrun … workloads/bench/gemm.py [--m 8192 --n 8192 --k 8192 --dtype bf16]

Shapes: a_MK @ b_KN = c_MN. 2*M*N*K floating-point operations (a multiplication and an addition each).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

if not __package__:
    # Started by path: Python put this folder in front, whose names are no modules of their own; the root is wanted.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from workloads.bench._options import parse_options
from workloads.common.device import device_name, synchronise
from workloads.common.process_group import choose_device
from workloads.common.results import append_result, spread, surroundings

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# More than the last-level cache of any device known here (256 MB Infinity Cache of MI300X), so that operands come from memory.
_COLD_BYTES = 2**30
# Relative error of a product whose sums are kept in fp32 and rounded once: the result's machine epsilon, with room for other orders.
_TOLERANCE = {"bf16": 2e-2, "fp16": 4e-3, "fp32": 1e-3}


@dataclass(frozen=True, slots=True)
class GemmOptions:
    """What is measured."""

    m: int = field(default=8192, metadata={"help": "rows of the result"})
    n: int = field(default=8192, metadata={"help": "columns of the result"})
    k: int = field(default=8192, metadata={"help": "length of each sum"})
    dtype: str = field(default="bf16", metadata={"help": "type of the operands", "choices": tuple(_DTYPES)})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda (ROCm as well)", "choices": ("auto", "cpu", "cuda")})
    warm_up: int = field(default=10, metadata={"help": "products before the clock starts"})
    steps: int = field(default=50, metadata={"help": "products that are timed"})


def measure(options: GemmOptions, device: torch.device) -> list[float]:
    """Return the time of each product, in seconds, after checking one result."""
    dtype = _DTYPES[options.dtype]
    pair_bytes = (options.m * options.k + options.k * options.n) * dtype.itemsize
    count = max(1, min(_COLD_BYTES // pair_bytes + 1, options.warm_up + options.steps))
    generator = torch.Generator(device).manual_seed(0)
    pairs = [_operands(options, dtype, device, generator) for _ in range(count)]
    c_MN = torch.empty(options.m, options.n, dtype=dtype, device=device)
    _check(pairs[0], options)
    times = []
    for step in range(options.warm_up + options.steps):
        a_MK, b_KN = pairs[step % count]
        synchronise(device)
        started = time.perf_counter()
        torch.matmul(a_MK, b_KN, out=c_MN)
        synchronise(device)
        times.append(time.perf_counter() - started)
    return times[options.warm_up :]


def _operands(
    options: GemmOptions, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    a_MK = torch.randn(options.m, options.k, device=device, generator=generator).to(dtype)
    b_KN = torch.randn(options.k, options.n, device=device, generator=generator).to(dtype)
    return a_MK, b_KN


def _check(pair: tuple[torch.Tensor, torch.Tensor], options: GemmOptions) -> None:
    """Compare a corner of the product with one in double precision: a wrong result has no speed."""
    a_MK, b_KN = pair
    rows, columns = min(64, options.m), min(64, options.n)
    expected = a_MK[:rows].double() @ b_KN[:, :columns].double()
    error = ((a_MK @ b_KN)[:rows, :columns].double() - expected).norm() / expected.norm()
    if not error < _TOLERANCE[options.dtype]:
        allowed = _TOLERANCE[options.dtype]
        sys.exit(f"gemm: the product is wrong: relative error {error:.3g}, allowed {allowed}\n  fix: take the device out of use")


def main(argv: list[str]) -> int:
    """Measure; every rank prints and keeps its own device's result; return the exit code."""
    options = parse_options(GemmOptions, "Measure matrix multiplication.", argv)
    device = choose_device(options.device)
    times_s = measure(options, device)
    flop = 2 * options.m * options.n * options.k
    tflops = spread([flop / seconds / 1e12 for seconds in times_s])
    rank = int(os.environ.get("RANK", "0"))
    result = {
        "benchmark": "gemm",
        "options": asdict(options),
        "rank": rank,
        "device": device_name(device),
        "time_s": spread(times_s),
        "tflop_per_s": tflops,
        **surroundings(),
    }
    shape = f"{options.m}x{options.n}x{options.k} {options.dtype}"
    print(f"gemm {shape} on {device_name(device)}: median {tflops['median']:.2f} TFLOP/s of {tflops['n']}")
    append_result(Path(os.environ.get("RUN_DIR", ".")), result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
