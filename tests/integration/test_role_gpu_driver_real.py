"""Role `gpu_driver`: the script that rebuilds the initramfs."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path


def renew(root: Path, modules: tuple[str, ...], *, held: str, conf_s: int) -> tuple[str, str]:
    """Run renew_initramfs.sh on a fake host whose image has time 1000; return the output and the rebuilt kernels."""
    programs = root / "programs"
    for folder in (programs, root / "boot", root / "etc/modprobe.d", root / "lib/modules/6.8.0/updates/dkms"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "boot/initrd.img-6.8.0").write_text("", encoding="utf-8")
    os.utime(root / "boot/initrd.img-6.8.0", (1000, 1000))
    os.utime(root / "lib/modules/6.8.0/updates/dkms", (900, 900))
    os.utime(root / "etc/modprobe.d", (conf_s, conf_s))
    for name, text in {"lsinitramfs": f"echo usr/lib/modules/6.8.0/{held}", "update-initramfs": f"echo $* > {root}/renewed"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    script = content.roles_dir() / "gpu_driver/files/renew_initramfs.sh"
    done = subprocess.run(
        ["/bin/sh", str(script), str(root), "6.8.0", *modules],
        env={"PATH": f"{programs}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    renewed = root / "renewed"
    return done.stdout.strip(), renewed.read_text(encoding="utf-8").strip() if renewed.exists() else ""


@pytest.mark.parametrize(
    ("modules", "held", "conf_s", "renewed"),
    [
        (("amdgpu",), "updates/dkms/amdgpu.ko.zst", 2000, True),
        (("amdgpu", "nvidia_drm"), "kernel/nvidia-drm.ko", 2000, True),
        (("amdgpu",), "updates/dkms/amdgpu.ko", 500, False),
        (("amdgpu",), "kernel/notamdgpu.ko", 2000, False),
        ((), "kernel/amdgpu.ko", 2000, False),
    ],
)
def test_outdated_initramfs_is_rebuilt(
    tmp_path: Path,
    modules: tuple[str, ...],
    held: str,
    conf_s: int,
    renewed: bool,  # noqa: FBT001 (a case)
) -> None:
    """Only an image that contains one of the modules and is older than the options is rebuilt."""
    got = renew(tmp_path, modules, held=held, conf_s=conf_s)

    assert got == (("updated", "-u -k 6.8.0") if renewed else ("", ""))
