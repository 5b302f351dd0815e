"""Check that the IOMMU does not translate the GPUs' addresses: translation slows peer-to-peer traffic, pass-through (identity) does not."""

from __future__ import annotations

from primus_bootstrap.launch.checks.model import (
    GPU,
    MACHINE,
    Check,
    Node,
    UnavailableError,
    Verdicts,
    pass_or_fail,
    passed,
    require_text,
    unknown,
)

_SOURCE = (
    "https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/system-optimization/mi300x.html (iommu=pt); "
    "https://docs.nvidia.com/cuda/gpudirect-rdma/ (supported systems); /sys/kernel/iommu_groups/*/type"
)


def _check(node: Node) -> Verdicts:
    for gpu in node.gpu_findings.gpus:
        fields = {"device": gpu.address, "expected": "identity or none", "source": _SOURCE}
        group = node.pci(gpu.address) / "iommu_group"
        if not group.exists():
            yield passed(found="no IOMMU", **fields)
            continue
        try:
            kind = require_text(group / "type")
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, **fields)
            continue
        fix = "add iommu=pt to the kernel's command line (baseline_kernel_arguments) and reboot"
        yield pass_or_fail(good=kind == "identity", reason=f"the IOMMU translates addresses ({kind})", fix=fix, found=kind, **fields)


CHECK = Check("iommu", "The IOMMU does not translate the GPUs' addresses.", "iommu_group in sysfs", _check, needs=(MACHINE, GPU))
