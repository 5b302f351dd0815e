"""Measure causal attention, forward and backward, with each backend of scaled_dot_product_attention: TFLOP/s per GPU (or CPU).

    torchrun … workloads/bench/attention.py [--backends flash,cudnn --length 8192]

Shapes: B batch, H query heads, K key and value heads, L length, C width of a head.
Operations: forward 4 B H L² C / 2 (two products; half of the square is masked), backward 2.5 times as many (five products):
https://github.com/Dao-AILab/flash-attention/blob/main/benchmarks/benchmark_flash_attention.py, `flops`.
"""

from __future__ import annotations

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
from workloads.common.errors import SettingsError
from workloads.common.timing import time_samples
from workloads.train.attention import BACKENDS, attend

if TYPE_CHECKING:
    from workloads.common.results import Sizes

_BACKWARD = 2.5
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Allowed relative error against fp32 with the same inputs: a few roundings of the type, with margin for another order of operations.
_TOLERANCE = {"bf16": 3e-2, "fp16": 5e-3, "fp32": 1e-3}


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The options. The default heads are those of Llama 3.1 8B (arXiv:2407.21783, table 3)."""

    backends: tuple[str, ...] = field(
        default=("auto",),
        metadata={"help": f"some of {', '.join(BACKENDS)}; auto: those that this device supports", "words": ("auto", *BACKENDS)},
    )
    batch: int = field(default=0, metadata={"help": "B; 0: 2 on a GPU, 1 on a CPU"})
    heads: int = field(default=32, metadata={"help": "H"})
    kv_heads: int = field(default=8, metadata={"help": "K"})
    length: int = field(default=0, metadata={"help": "L; 0: 4096 on a GPU, 256 on a CPU"})
    head_width: int = field(default=128, metadata={"help": "C"})
    dtype: str = field(default="bf16", metadata={"help": "type of queries, keys and values", "choices": tuple(_DTYPES)})
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=5, metadata=WARM_UP)
    repeats: int = field(default=20, metadata=REPEATS)
    timeout_s: float = field(default=600.0, metadata=TIMEOUT_S)


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def measure(options: AttentionOptions, run: Run) -> None:
    """Measure each backend, forward and backward."""
    unknown = [name for name in options.backends if name not in BACKENDS and options.backends != ("auto",)]
    if unknown:
        raise SettingsError(f"--backends {unknown[0]}: no such backend", fix=f"choose from: {', '.join(BACKENDS)}")
    inputs = _inputs(options, run.device)
    for backend in BACKENDS if options.backends == ("auto",) else options.backends:
        if options.backends == ("auto",) and not _works(inputs, backend):
            print(f"attention: skipped {backend}, which does not support this device and these shapes")
            continue
        _measure_backend(options, run, inputs, backend)


def _measure_backend(options: AttentionOptions, run: Run, inputs: Tensors, backend: str) -> None:
    q_BHLC, k_BKLC, v_BKLC = inputs
    batch, heads, length, width = q_BHLC.shape
    flop = 4 * batch * heads * length**2 * width / 2
    shape: Sizes = {
        "batch": batch,
        "heads": heads,
        "kv_heads": k_BKLC.shape[1],
        "length": length,
        "head_width": width,
        "dtype": options.dtype,
    }

    def forward(_number: int) -> torch.Tensor:
        return attend(q_BHLC, k_BKLC, v_BKLC, backend)

    with run.series("tflop_per_s", "TFLOP/s", "higher", {**shape, "backend": backend, "pass": "forward"}) as series:
        with torch.no_grad():
            times_s = time_samples(forward, run.device, warm_up=options.warm_up, repeats=options.repeats)
        series.done([flop / seconds / 1e12 for seconds in times_s], correct=_is_correct(options, inputs, backend, gradients=False))
    with run.series("tflop_per_s", "TFLOP/s", "higher", {**shape, "backend": backend, "pass": "backward"}) as series:
        out_BHLC = forward(0)
        change_BHLC = torch.randn_like(out_BHLC)

        def backward(_number: int) -> object:
            return torch.autograd.grad(out_BHLC, inputs, change_BHLC, retain_graph=True)

        times_s = time_samples(backward, run.device, warm_up=options.warm_up, repeats=options.repeats)
        samples = [_BACKWARD * flop / seconds / 1e12 for seconds in times_s]
        series.done(samples, correct=_is_correct(options, inputs, backend, gradients=True))


def _inputs(options: AttentionOptions, device: torch.device) -> Tensors:
    gpu = device.type == "cuda"
    batch, length = options.batch or (2 if gpu else 1), options.length or (4096 if gpu else 256)
    generator = torch.Generator(device).manual_seed(0)

    def make(heads: int) -> torch.Tensor:
        values = torch.randn(batch, heads, length, options.head_width, device=device, generator=generator)
        return values.to(_DTYPES[options.dtype]).requires_grad_()

    return make(options.heads), make(options.kv_heads), make(options.kv_heads)


def _works(inputs: Tensors, backend: str) -> bool:
    """Return whether the backend supports these inputs, by torch's error messages on GPUs and CPUs."""
    try:
        attend(*inputs, backend)
    except RuntimeError as error:
        if str(error).startswith(("No available kernel", "No viable backend")):
            return False
        raise
    return True


def _is_correct(options: AttentionOptions, inputs: Tensors, backend: str, *, gradients: bool) -> bool:
    """Compare the first key head and its queries with fp32 attention by definition: the result, or the gradients of all inputs."""
    group = inputs[0].shape[1] // inputs[1].shape[1]
    part = tuple(values.detach()[:1, :count].contiguous().requires_grad_() for values, count in zip(inputs, (group, 1, 1), strict=True))
    exact = tuple(values.detach().float().requires_grad_() for values in part)
    found, expected = attend(part[0], part[1], part[2], backend), _by_definition(*exact)
    if not gradients:
        return _close(found, expected, options.dtype)
    change = torch.randn_like(found)
    pairs = zip(torch.autograd.grad(found, part, change), torch.autograd.grad(expected, exact, change.float()), strict=True)
    return all(_close(gradient, exact_gradient, options.dtype) for gradient, exact_gradient in pairs)


def _by_definition(q_BHLC: torch.Tensor, k_BKLC: torch.Tensor, v_BKLC: torch.Tensor) -> torch.Tensor:
    """Return causal attention by its definition: softmax(q k / sqrt(C)) v."""
    scores_BHLL = q_BHLC @ k_BKLC.transpose(-1, -2) / q_BHLC.shape[-1] ** 0.5
    later_LL = torch.ones(scores_BHLL.shape[-2:], dtype=torch.bool, device=q_BHLC.device).triu(1)
    weights_BHLL: torch.Tensor = scores_BHLL.masked_fill(later_LL, float("-inf")).softmax(-1)
    return weights_BHLL @ v_BKLC


def _close(found: torch.Tensor, expected: torch.Tensor, dtype: str) -> bool:
    return float((found.detach().float() - expected.detach()).norm() / expected.detach().norm()) < _TOLERANCE[dtype]


BENCHMARK = Benchmark("attention", "Measure causal attention.", AttentionOptions, measure)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
