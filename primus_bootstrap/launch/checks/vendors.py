"""Run a check for each GPU: AMD GPUs are read from sysfs one by one, NVIDIA GPUs from one output of nvidia-smi."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import UnavailableError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu


def check_each_gpu(
    check_amd: Callable[[Node, Gpu], Verdict], check_nvidia: Callable[[nvidia.SmiGpu], Verdict], *, amd_source: str
) -> Callable[[Node], Iterator[Verdict]]:
    """Return a function that yields one verdict per GPU. An AMD GPU without a value is `unknown`, with `amd_source` as the source."""

    def check(node: Node) -> Iterator[Verdict]:
        for gpu in node.gpus_of("amd"):
            try:
                yield check_amd(node, gpu)
            except UnavailableError as error:
                yield unknown(error.what, fix=error.fix, device=gpu.address, source=amd_source)
        if node.gpus_of("nvidia"):
            yield from map(check_nvidia, nvidia.query(node))

    return check
