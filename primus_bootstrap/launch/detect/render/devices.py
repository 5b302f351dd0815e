"""Render the permissions of the GPU device files: udev rules for AMD, module options for NVIDIA, whose driver creates its files itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.gpus import GpuFindings
    from primus_bootstrap.launch.detect.site import Site

UDEV_RULES = "etc/udev/rules.d/70-primus-gpu.rules"
MODULE_OPTIONS = "etc/modprobe.d/primus-nvidia.conf"
_HEAD = "# Written by primus-bootstrap (role gpu_env); edits are overwritten. Settings: gpu_env_device_group, gpu_env_device_mode.\n"


def group_id(root: Path, name: str) -> int | None:
    """Return the id of a group of the host, or None if it does not exist."""
    try:
        lines = (root / "etc/group").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        fields = line.split(":")
        if len(fields) > 2 and fields[0] == name and fields[2].isdecimal():
            return int(fields[2])
    return _directory_group_id(name) if root == Path("/") else None


def device_files(gpus: GpuFindings, site: Site, gid: int | None) -> dict[str, str | None]:
    """Return the permission files for the vendors on this host; None for a file that must not exist.

    AMD: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html, "Configuring permissions for GPU access".
    NVIDIA: the driver's README, "How and when are the NVIDIA device files created?"; effective after the module is reloaded.
    """
    vendors = {gpu.vendor for gpu in gpus.gpus} if gid is not None else set()
    rules = (
        f'SUBSYSTEM=="kfd", KERNEL=="kfd", GROUP="{site.device_group}", MODE="{site.device_mode}"\n'
        f'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="{site.device_group}", MODE="{site.device_mode}"\n'
    )
    options = f"options nvidia NVreg_DeviceFileUID=0 NVreg_DeviceFileGID={gid} NVreg_DeviceFileMode={site.device_mode}\n"
    return {
        UDEV_RULES: _HEAD + rules if "amd" in vendors else None,
        MODULE_OPTIONS: _HEAD + options if "nvidia" in vendors else None,
    }


def reload_rules() -> None:
    """Apply new udev rules to existing devices. Without a running udev, they are applied when it starts.

    Raises:
        OSError: udevadm is missing or failed.
    """
    if not Path("/run/udev/control").exists():
        return
    for command in (["control", "--reload"], ["trigger", "--subsystem-match=kfd", "--subsystem-match=drm"]):
        done = run_command(["udevadm", *command], timeout_s=60)
        if done.code:
            raise OSError(f"udevadm {' '.join(command)} failed with exit code {done.code}: {done.stderr.strip()}")


def _directory_group_id(name: str) -> int | None:
    """Look the group up in the name service, for groups of a directory such as LDAP."""
    import grp  # noqa: PLC0415 - only for this host

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
