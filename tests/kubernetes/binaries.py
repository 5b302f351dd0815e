"""The programs of a real Kubernetes for the tests: given, kept from an earlier time, or built from the distribution's source."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from primus_bootstrap.lab.machine import cache_dir

VERSION = "1.20.2"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
PROGRAMS = (*CONTROL_PLANE, "kubelet", "kubeadm", "kube-proxy", "pause")
_SCRIPT = Path(__file__).with_name("build_kubernetes.sh")


class CannotError(Exception):
    """This machine cannot have these programs; says why, and what would help."""


def kubernetes_programs(wanted: tuple[str, ...] = CONTROL_PLANE) -> Path:
    """Return a folder with the wanted programs, etcd among them; builds them where nothing has them yet.

    Raises:
        CannotError: They are neither given nor can they be built here.
    """
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        return _complete(Path(given), (*wanted, "etcd"))
    folder = cache_dir() / f"kubernetes-{VERSION}-{hashlib.sha256(_SCRIPT.read_bytes()).hexdigest()[:12]}"
    with (cache_dir() / "kubernetes.lock").open("w") as lock:
        # Two sessions that begin together build once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build(folder)
    return _complete(folder, (*wanted, "etcd"))


def _complete(folder: Path, wanted: tuple[str, ...]) -> Path:
    lacking = [name for name in wanted if not (folder / name).is_file()]
    if lacking:
        raise CannotError(f"{folder} lacks {', '.join(lacking)}\n  fix: remove the folder, or unset KUBEBUILDER_ASSETS")
    return folder


def _build(folder: Path) -> None:
    """Build into a folder beside, and give it its name when it is whole."""
    etcd = shutil.which("etcd")
    if etcd is None or not Path("/usr/lib/go-1.19/bin/go").is_file():
        raise CannotError(
            "no Kubernetes for the tests is here, and what builds one is missing\n"
            "  fix: on Debian 12, `tools/setup.sh tests` (etcd-server etcd-client golang-1.19-go gcc libc6-dev xz-utils); "
            "elsewhere, put into "
            f"KUBEBUILDER_ASSETS a folder with etcd, {', '.join(CONTROL_PLANE)}",
        )
    sys.stderr.write(f"kubernetes: building {VERSION} from the distribution's source, once, in some five minutes\n")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="kubernetes-build-") as work:
        programs = Path(work) / "programs"
        said = _run_build([str(_SCRIPT), work, str(programs)])
        if said:
            raise CannotError("building Kubernetes failed:\n" + "\n".join(said[-10:]) + f"\n  fix: mend that, or run {_SCRIPT} by hand")
        (programs / "etcd").symlink_to(etcd)
        programs.rename(folder)


def _run_build(argv: list[str]) -> list[str]:
    """Run the build, show its steps, and return what it said where it failed."""
    said = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as build:
        assert build.stdout
        for line in build.stdout:
            said.append(line.rstrip())
            if line.startswith("kubernetes: "):
                sys.stderr.write(line)
    return said if build.returncode else []


if __name__ == "__main__":
    sys.stdout.write(f"{kubernetes_programs(PROGRAMS)}\n")
