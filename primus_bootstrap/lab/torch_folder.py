"""Install torch once on this machine, in a virtual environment that `lab up --torch` mounts read-only in every host."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.content import content_root
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.image import file_lock
from primus_bootstrap.lab.lab_values import RELEASES

if TYPE_CHECKING:
    from primus_bootstrap.lab.lab_values import Progress
    from primus_bootstrap.lab.machine import Machine

# The path in the hosts; hosts.yaml of a lab has it as workload_venv.
TARGET = "/opt/train"
# What the ranks of a training job import. constraints.txt of a checkout pins them.
REQUIREMENTS = ("torch", "numpy", "PyYAML")
# /usr/bin/python3 of the releases for which all requirements have wheels, https://packages.debian.org/python3 and
# https://packages.ubuntu.com/python3
PYTHONS = {"bookworm": "3.11", "trixie": "3.13", "noble": "3.12"}
_INSTALL_TIMEOUT_S = 1800.0
# What every job imports, so that the hosts find it compiled: they cannot write into the folder.
_IMPORT = "import torch, numpy, yaml, torch.distributed.run, torch.nn.parallel"


def torch_mount(machine: Machine, releases: tuple[str, ...]) -> str:
    """Return the mount `FOLDER:TARGET` for hosts of these releases. The folder's name depends on its contents.

    Raises:
        UsageError: The releases have different Pythons, or one without torch.
    """
    version = PYTHONS.get(releases[0], "")
    if not version or any(PYTHONS.get(release) != version for release in releases):
        titles = " and ".join(RELEASES.get(release, release) for release in releases)
        usable = next((release for release in machine.suites if release in PYTHONS), "")
        raise UsageError(
            f"--torch cannot serve {titles}: it needs one release with Python {', '.join(PYTHONS.values())}",
            fix=f"use one release: --release {usable}" if usable else "leave --torch out",
        )
    key = hashlib.sha256("\n".join((version, _IMPORT, *_pinned())).encode()).hexdigest()[:12]
    return f"{machine.cache / f'torch-python{version}-{key}'}:{TARGET}"


def is_torch(machine: Machine, mount: str) -> bool:
    """Return whether `torch_mount`, possibly of another release of this program, returned this mount."""
    folder, _, target = mount.rpartition(":")
    return target == TARGET and Path(folder).parent == machine.cache and Path(folder).name.startswith("torch-python")


def ensure_torch(mount: str, progress: Progress) -> bool:
    """Create the folder of `torch_mount` if it is missing; return whether it was created.

    Raises:
        LabError: pip failed.
    """
    folder = Path(mount.rpartition(":")[0])
    lock = folder.with_name(f".{folder.name}.lock")
    with file_lock(lock, timeout_s=_INSTALL_TIMEOUT_S, progress=progress, what="the hosts' torch"):
        if folder.is_dir():
            return False
        version = folder.name.split("-")[1].removeprefix("python")
        progress(f"torch: installing it for the hosts, with Python {version} (about 200 MB to download)")
        started = time.monotonic()
        part = Path(tempfile.mkdtemp(prefix=".torch-", dir=folder.parent))
        try:
            _install(part, version)
            part.chmod(0o755)  # the hosts' users read it
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        progress(f"torch: installed in {time.monotonic() - started:.0f} s")
    return True


def _pinned() -> list[str]:
    """Return the requirements with the versions of constraints.txt; an installed package has no such file."""
    constraints = content_root() / "constraints.txt"
    lines = constraints.read_text().splitlines() if constraints.is_file() else []
    pins = {name.lower(): line for line in lines if (name := line.partition("==")[0].strip()) != line}
    return [pins.get(name.lower(), name) for name in REQUIREMENTS]


def _install(folder: Path, version: str) -> None:
    """Install the requirements into the form of a virtual environment of the hosts' /usr/bin/python3."""
    packages = folder / "lib" / f"python{version}" / "site-packages"
    # The machine's Python may be another one. All requirements have wheels.
    for_hosts = ["--target", str(packages), "--python-version", version, "--implementation", "cp", "--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run([*pip, *for_hosts, *_pinned()], timeout_s=_INSTALL_TIMEOUT_S)
    if same := shutil.which(f"python{version}"):
        run([same, "-c", f"import sys; sys.path.insert(0, {str(packages)!r}); {_IMPORT}"], timeout_s=300)
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to("/usr/bin/python3")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
