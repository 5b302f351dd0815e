"""Build the disk of a virtual machine once and keep it in the cache, named by what it depends on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.image import PACKAGES as NODE_PACKAGES
from primus_bootstrap.lab.image import SCRIPT, file_lock, mmdebstrap_argv
from primus_bootstrap.lab.lab_values import RELEASES, MachineError, Progress
from primus_bootstrap.lab.machine import Machine, cache_dir, release, sudo_prefix

if TYPE_CHECKING:
    from primus_bootstrap.lab.apt_settings import AptSettings

_DATA = Path(__file__).parent.parent / "data"
_CUSTOMIZE = _DATA / "vm_customize.sh"
_DISK_SCRIPT = _DATA / "vm_disk.sh"
# What a server has and a container has not. The cloud kernel is the one with the drivers of virtual machines only.
PACKAGES = (*NODE_PACKAGES, "grub-pc", "initramfs-tools", "kmod", "libpam-systemd", "linux-image-cloud-amd64", "udev", "zstd")
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "sfdisk": "fdisk",
    "mke2fs": "e2fsprogs",
}
DISK_SIZE_MIB = 8192
_MAX_AGE_S = 14 * 24 * 3600


@dataclass(frozen=True, slots=True)
class VmImage:
    """The disk of one release. Virtual machines use it as the read-only base of their own disks."""

    suite: str
    disk: Path


def inspect_for_vms() -> Machine:
    """Return the properties of this machine that virtual machines use.

    Raises:
        MachineError: A program is missing, or this machine has another architecture or distribution.
    """
    if platform.machine() != "x86_64":
        raise MachineError(
            f"the virtual machines are x86_64 and this machine is {platform.machine()}",
            fix="use the lab's containers: primus-bootstrap lab up",
        )
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program, path=search) is None]
    if missing:
        raise MachineError(
            "programs for virtual machines are not installed", fix=f"apt-get install --no-install-recommends {' '.join(missing)}"
        )
    codename, suites = release(Path("/etc/os-release"))
    version = run(["qemu-system-x86_64", "--version"], timeout_s=30).stdout.split("\n")[0]
    return Machine("qemu", version, sudo_prefix(), codename, suites, cache_dir())


def vm_image_for(machine: Machine, suite: str) -> VmImage:
    """Return the image of a release. Its name depends on the release, the packages and the scripts."""
    recipe = "\n".join((suite, str(DISK_SIZE_MIB), *PACKAGES, *(path.read_text() for path in (SCRIPT, _CUSTOMIZE, _DISK_SCRIPT))))
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return VmImage(suite, machine.cache / "vm" / f"{suite}-{key}.raw")


def ensure_vm_image(machine: Machine, image: VmImage, settings: AptSettings, progress: Progress) -> bool:
    """Build the disk if the cache does not have it; return whether it was built.

    Raises:
        LabError: The packages could not be downloaded or installed, or the disk could not be written.
    """
    image.disk.parent.mkdir(parents=True, exist_ok=True)
    what = f"the disk of {image.suite}"
    with file_lock(image.disk.with_suffix(".lock"), timeout_s=3600, progress=progress, what=what):
        if image.disk.exists():
            os.utime(image.disk)
            return False
        progress(f"{what} ({RELEASES.get(image.suite, image.suite)}): building from the distribution's packages (1 to 3 minutes)")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=".build-", dir=image.disk.parent) as folder:
            _build(machine, image, settings, Path(folder))
        _remove_old(image)
        progress(f"{what}: built in {time.monotonic() - started:.0f} s")
    return True


def _build(machine: Machine, image: VmImage, settings: AptSettings, folder: Path) -> None:
    archive, disk = folder / "root.tar", folder / "disk.raw"
    argv = mmdebstrap_argv(image.suite, settings, folder, packages=PACKAGES, scripts=(SCRIPT, _CUSTOMIZE))
    run([*machine.sudo, *argv], timeout_s=3000, stdout_file=archive)
    # Created here, so that it belongs to this user although the script runs as root.
    disk.touch()
    run([*machine.sudo, "sh", str(_DISK_SCRIPT), str(archive), str(disk), str(DISK_SIZE_MIB)], timeout_s=1200)
    disk.replace(image.disk)


def _remove_old(image: VmImage) -> None:
    """Remove disks of other recipes that no virtual machine was created from for two weeks."""
    for other in image.disk.parent.glob("*.raw"):
        with contextlib.suppress(OSError):
            if other != image.disk and time.time() - other.stat().st_mtime > _MAX_AGE_S:
                other.unlink()
