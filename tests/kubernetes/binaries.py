"""Provide the programs of Kubernetes for the tests: from KUBEBUILDER_ASSETS, from the cache, or built from Debian's source."""

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
_BUILD_PREFIX = "kubernetes-build-"


class CannotError(Exception):
    """The programs are not available on this machine; the message has the reason and the fix."""


def kubernetes_programs(names: tuple[str, ...] = CONTROL_PLANE) -> Path:
    """Return a folder with these programs and etcd; build them if the cache does not have them.

    Raises:
        CannotError: The programs are not available and cannot be built.
    """
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        return _complete(Path(given), (*names, "etcd"))
    folder = cache_dir() / f"kubernetes-{VERSION}-{hashlib.sha256(_SCRIPT.read_bytes()).hexdigest()[:12]}"
    with (cache_dir() / "kubernetes.lock").open("w") as lock:
        # Sessions that start at the same time build once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only the holder of the lock builds, so an existing build folder is from an interrupted build.
        for abandoned in folder.parent.glob(f"{_BUILD_PREFIX}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        if not folder.is_dir():
            _build(folder)
    return _complete(folder, (*names, "etcd"))


def _complete(folder: Path, names: tuple[str, ...]) -> Path:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CannotError(f"{folder} lacks {', '.join(missing)}\n  fix: remove the folder, or unset KUBEBUILDER_ASSETS")
    return folder


def _build(folder: Path) -> None:
    """Build in a temporary folder, and rename the result to `folder`."""
    etcd = shutil.which("etcd")
    if etcd is None or not Path("/usr/lib/go-1.19/bin/go").is_file():
        raise CannotError(
            "Kubernetes for the tests is not built, and the tools to build it are missing\n"
            "  fix: on Debian 12, run `tools/setup.sh tests` (etcd-server etcd-client golang-1.19-go gcc libc6-dev xz-utils); "
            f"elsewhere, set KUBEBUILDER_ASSETS to a folder with etcd, {', '.join(CONTROL_PLANE)}",
        )
    sys.stderr.write(f"kubernetes: building {VERSION} from the distribution's source, once, in about five minutes\n")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_BUILD_PREFIX) as work:
        programs = Path(work) / "programs"
        output = _run_build([str(_SCRIPT), work, str(programs)])
        if output:
            raise CannotError("building Kubernetes failed:\n" + "\n".join(output[-10:]) + f"\n  fix: correct the cause, then run {_SCRIPT}")
        (programs / "etcd").symlink_to(etcd)
        programs.rename(folder)


def _run_build(argv: list[str]) -> list[str]:
    """Run the build and print its steps; return its output if it failed."""
    output = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as build:
        assert build.stdout
        for line in build.stdout:
            output.append(line.rstrip())
            if line.startswith("kubernetes: "):
                sys.stderr.write(line)
    return output if build.returncode else []


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{kubernetes_programs(PROGRAMS)}\n")
    except CannotError as error:
        sys.exit(str(error))
