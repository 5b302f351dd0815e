"""The engine options that add this host's GPUs and RDMA devices to a container. Only existing devices are added."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.detect.gpus import GpuFindings

AMD, NVIDIA, NONE = "amd", "nvidia", "none"
_RDMA = "dev/infiniband"


def vendor(setting: str, gpus: GpuFindings) -> str:
    """Return the vendor of the GPUs to add.

    Raises:
        PlanError: The setting is auto and the vendor of this host's GPUs is unknown.
    """
    if setting != "auto":
        return setting
    if gpus.vendor in (AMD, NVIDIA):
        return gpus.vendor
    if gpus.vendor == "cpu":
        return NONE
    raise PlanError(f"the vendor of this host's GPUs is unknown: {gpus.reason}", fix="pass --gpus amd, --gpus nvidia or --gpus none")


def words(engine: str, gpu_vendor: str, root: Path) -> tuple[str, ...]:
    """Return the engine's options for the GPUs of a vendor and for RDMA."""
    if engine == "apptainer":
        return {AMD: ("--rocm",), NVIDIA: ("--nv",), NONE: ()}[gpu_vendor]
    options: list[str] = []
    if gpu_vendor == AMD:
        # kfd, dri, and the groups that own them: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html
        nodes = [node for node in ("dev/kfd", "dev/dri") if (root / node).exists()]
        options += [f"--device=/{node}" for node in nodes]
        options += [f"--group-add={group}" for group in _groups(root)]
        options.append("--security-opt=seccomp=unconfined")
    if gpu_vendor == NVIDIA:
        # Docker has a flag of its own; podman uses the Container Device Interface:
        # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
        options.append("--gpus=all" if engine == "docker" else "--device=nvidia.com/gpu=all")
    if (root / _RDMA).is_dir():
        options += [f"--device=/{_RDMA}", "--cap-add=IPC_LOCK"]
    return tuple(options)


def _groups(root: Path) -> tuple[int, ...]:
    """Return the ids of the groups that own the device nodes; the image may have other names for them."""
    nodes = [root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))]
    groups = {node.stat().st_gid for node in nodes if node.exists() and stat.S_IMODE(node.stat().st_mode) & 0o007 == 0}
    return tuple(sorted(groups))
