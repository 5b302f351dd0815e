"""Looking at each GPU by its vendor's own way: AMD's in sysfs one by one, NVIDIA's all in one answer of nvidia-smi."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import CannotTellError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu


def each_gpu(
    amd: Callable[[Node, Gpu], Verdict], of_nvidia: Callable[[nvidia.Smi], Verdict], *, amd_source: str
) -> Callable[[Node], Iterator[Verdict]]:
    """Return the look that gives one record a GPU; an AMD GPU that does not say it is unknown (`amd_source`), and the others go on."""

    def look(node: Node) -> Iterator[Verdict]:
        for gpu in node.gpus_of("amd"):
            try:
                yield amd(node, gpu)
            except CannotTellError as error:
                yield unknown(error.reason, fix=error.fix, device=gpu.address, source=amd_source)
        if node.gpus_of("nvidia"):
            yield from map(of_nvidia, nvidia.query(node))

    return look
