"""A host to configure and throw away: an overlay of this machine's files in namespaces of its own.

Writes go to memory and end with the process. The kernel's settings are read-only, there is no network and no systemd, and root has no
capability that reaches out of the namespaces. The repository cannot be read. Programs see the host as a container.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

# $1: an empty folder; $2: a script; $3: a folder to hide; the others: folders that the script sees under their paths.
_ENTER = r"""
mount --make-rprivate /
mount -t tmpfs none "$1"
root=$1/root script=$2 hidden=$3
mkdir "$1/upper" "$1/work" "$root"
mount -t overlay none -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
shift 3
mount -t proc none "$root/proc"
mount --bind /sys "$root/sys"
for kernel in proc/sys sys; do
    mount --bind "$root/$kernel" "$root/$kernel"
    mount -o remount,bind,ro "$root/$kernel"
done
mount --rbind /dev "$root/dev"
for new in run tmp; do mount -t tmpfs none "$root/$new"; done
mkdir "$root/run/systemd"
echo oci > "$root/run/systemd/container"
mkdir -p "$root$hidden"
mount -t tmpfs none "$root$hidden"
for shown; do
    mkdir -p "$root$shown"
    mount --bind "$shown" "$root$shown"
    mount -o remount,bind,ro "$root$shown"
done
outside=-sys_admin,-sys_module,-sys_time,-sys_boot,-sys_rawio,-sys_resource,-net_admin
chroot "$root" setpriv --bounding-set="$outside" --inh-caps=-all sh -eu -c "$script"
"""
ROOT = Path(__file__).resolve().parents[2]
_NEEDED = ("unshare", "setpriv", "dpkg-deb", "sudo", "visudo", "sshd")
# An empty package in place of one that a role would download.
_EMPTY_PACKAGE = """
mkdir -p /tmp/{name}/DEBIAN
printf 'Package: {name}\\nVersion: 99\\nArchitecture: all\\nMaintainer: test\\nDescription: empty\\n' > /tmp/{name}/DEBIAN/control
dpkg-deb --build /tmp/{name} > /dev/null
dpkg --install /tmp/{name}.deb > /dev/null
"""


def run_on_throwaway_host(
    tmp_path: Path, script: str, *, shown: tuple[Path, ...], packages: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a script as root on a new host that has empty packages of these names; skip the test if this machine cannot create one.

    Args:
        tmp_path: The folder of the test.
        script: A shell script.
        shown: Folders of this machine that the host can read under the same paths, besides Python.
        packages: Names of packages that need not be installed for the script.
    """
    _skip_if_impossible()
    (tmp_path / "host").mkdir()
    whole = "".join(_EMPTY_PACKAGE.format(name=name) for name in packages) + script
    folders = [str(folder) for folder in (Path(sys.prefix), Path(sys.base_prefix), *shown) if str(folder) not in ("/", "/usr")]
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts"]
    argv = [*namespaces, "sh", "-euc", _ENTER, "sh", str(tmp_path / "host"), whole, str(ROOT), *folders]
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=900, check=False)


@cache
def _reason_against() -> str:
    """Return why this machine cannot create such a host; empty if it can."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        return f"needs root and {', '.join(missing or _NEEDED)}"
    overlay = "mount -t overlay none -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r"
    script = f"mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w /mnt/r && {overlay}"
    done = subprocess.run(["unshare", "--mount", "--net", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return f"this machine allows no overlay in a namespace: {done.stderr.strip()}" if done.returncode else ""


def _skip_if_impossible() -> None:
    reason = _reason_against()
    if reason:
        pytest.skip(reason)
