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
    check_amd: Callable[[Node, Gpu], Verdict], check_nvidia: Callable[[nvidia.SmiGpu], Verdict], sources: tuple[str, str] = ("", "")
) -> Callable[[Node], Iterator[Verdict]]:
    """Return a function that yields one verdict per GPU. A GPU without a value is `unknown`; `sources` are those of AMD and NVIDIA."""

    def check(node: Node) -> Iterator[Verdict]:
        for gpu in node.gpus_of("amd"):
            try:
                yield check_amd(node, gpu)
            except UnavailableError as error:
                yield unknown(error.what, fix=error.fix, device=gpu.address, source=sources[0])
        for one in nvidia.query(node) if node.gpus_of("nvidia") else ():
            try:
                yield check_nvidia(one)
            except UnavailableError as error:
                yield unknown(error.what, fix=error.fix, device=one.address, serial=one.serial, source=sources[1])

    return check
