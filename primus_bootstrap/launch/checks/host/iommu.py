"""Does an IOMMU translate what the GPUs read and write? Pass-through (identity) costs nothing; translation slows peer-to-peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, MACHINE, CannotTellError, Check, judged, passed, text_of, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_SOURCE = (
    "https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/system-optimization/mi300x.html (iommu=pt); "
    "https://docs.nvidia.com/cuda/gpudirect-rdma/ (supported systems); /sys/kernel/iommu_groups/*/type"
)


def _look(node: Node) -> Iterator[Verdict]:
    for gpu in node.gpu_findings.gpus:
        fields = {"device": gpu.address, "expected": "identity or none", "source": _SOURCE}
        group = node.pci(gpu.address) / "iommu_group"
        if not group.exists():
            yield passed(found="no IOMMU", **fields)
            continue
        try:
            kind = text_of(group / "type")
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, **fields)
            continue
        fix = "put iommu=pt on the kernel's command line (baseline_kernel_arguments) and reboot"
        yield judged(good=kind == "identity", reason=f"the IOMMU translates ({kind})", fix=fix, found=kind, **fields)


CHECK = Check("iommu", "No IOMMU translates what the GPUs read and write.", "iommu_group in sysfs", _look, needs=(MACHINE, GPU))
