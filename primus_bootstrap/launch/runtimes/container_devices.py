"""Which devices of this host go into a container, and by which words of each engine. Only what is there is named."""

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
    """Return whose devices go in.

    Raises:
        PlanError: It is left to us, and this host does not say clearly.
    """
    if setting != "auto":
        return setting
    if gpus.vendor in (AMD, NVIDIA):
        return gpus.vendor
    if gpus.vendor == "cpu":
        return NONE
    raise PlanError(f"whose GPUs this host has is not clear: {gpus.reason}", fix="set --gpus to amd, nvidia or none")


def words(engine: str, of: str, root: Path) -> tuple[str, ...]:
    """Return the engine's words for the GPUs of a vendor and for RDMA."""
    if engine == "apptainer":
        return {AMD: ("--rocm",), NVIDIA: ("--nv",), NONE: ()}[of]
    found: list[str] = []
    if of == AMD:
        # kfd, dri, and the groups that own them: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html
        nodes = [node for node in ("dev/kfd", "dev/dri") if (root / node).exists()]
        found += [f"--device=/{node}" for node in nodes]
        found += [f"--group-add={group}" for group in _groups(root)]
        found.append("--security-opt=seccomp=unconfined")
    if of == NVIDIA:
        # Docker's own flag; podman takes the Container Device Interface:
        # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
        found.append("--gpus=all" if engine == "docker" else "--device=nvidia.com/gpu=all")
    if (root / _RDMA).is_dir():
        found += [f"--device=/{_RDMA}", "--cap-add=IPC_LOCK"]
    return tuple(found)


def _groups(root: Path) -> tuple[int, ...]:
    """Return the groups that own the device nodes, as numbers: the image may have other names for them."""
    nodes = [root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))]
    groups = {node.stat().st_gid for node in nodes if node.exists() and stat.S_IMODE(node.stat().st_mode) & 0o007 == 0}
    return tuple(sorted(groups))
