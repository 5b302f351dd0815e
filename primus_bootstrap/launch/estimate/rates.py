"""The speeds of a GPU and its links, from data/rates.yml."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

GPUS_PER_HOST = 8
# The smallest dimension with which a matrix product reaches half of the speed of a large one; fitted as `gemm`.
_HALF_SPEED_SIZE = 256


@dataclass(frozen=True)
class Rates:
    """Peaks in TFLOP/s, memory and links in GB/s (10^9) of one GPU; `gemm` and `attention` are reached shares of the peak."""

    gpu: str
    memory_gib: float
    bf16: float
    fp8: float
    memory: float
    links: float
    network: float
    gemm: Mapping[str, float]
    attention: float
    source: str

    def gemm_flops(self, precision: str, size: float) -> float:
        """Return the FLOP/s of matrix products whose smallest dimension is `size`. Precisions below 8 bits are counted as fp8."""
        kind = "bf16" if precision == "bf16" else "fp8"
        return float(getattr(self, kind)) * self.gemm[kind] * 1e12 * size / (size + _HALF_SPEED_SIZE)

    def attention_flops(self) -> float:
        """Return the FLOP/s of fused attention."""
        return self.bf16 * self.attention * 1e12

    def bandwidth(self, ranks: int, stride: int = 1) -> float:
        """Return the bus bandwidth (bytes/s) of a gather or a sum over `ranks` whose neighbours are `stride` ranks apart.

        Between hosts, data crosses the network once per host, over the cards of all GPUs of the group on that host.
        """
        if ranks * stride <= GPUS_PER_HOST:
            return self.links * 1e9
        return min(self.links, self.network * max(1, GPUS_PER_HOST // stride)) * 1e9

    def exchange_bandwidth(self, ranks: int, stride: int = 1) -> float:
        """Return the bytes/s of one GPU in an all-to-all; between hosts, each GPU uses its own card."""
        return (self.links if ranks * stride <= GPUS_PER_HOST else self.network) * 1e9


@cache
def all_rates() -> Mapping[str, Rates]:
    """Return the rates of every GPU by name."""
    data = yaml.safe_load(pkgutil.get_data("primus_bootstrap.launch", "data/rates.yml") or b"")
    return {name: Rates(name, **facts) for name, facts in data["gpus"].items()}


def rates_of(gpu: str) -> Rates:
    """Return the rates of a GPU.

    Raises:
        UsageError: There are none.
    """
    found = all_rates()
    if gpu not in found:
        raise UsageError(f"no rates for the GPU {gpu}", fix=did_you_mean(gpu, found))
    return found[gpu]
