"""What a run needs of its node, in a container as well: the checks of the area `job` of the task `preflight`."""

from __future__ import annotations

import resource
import shutil
import socket
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from primus_bootstrap.core.verdicts import FAIL, PASS, SKIPPED, UNKNOWN, Verdict
from primus_bootstrap.launch.detect import gpus, nics, sysfs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_GIB = 2**30
_SHM_GIB = 8  # what data loaders and RCCL/NCCL share between processes of one node; docker's default of 64 MiB is the usual failure


def look(
    root: Path, run_dir: Path, environment: Mapping[str, str], *, min_free_gib: float = 10.0, expected_gpus: int | None = None
) -> tuple[Verdict, ...]:
    """Return a record of every check."""
    has_rdma = any(port.state == "ACTIVE" for port in nics.read_ports(sysfs.Host(root)))
    return (
        gpu_count(root, expected_gpus),
        free_space(run_dir, min_free_gib),
        locked_memory(has_rdma=has_rdma),
        shared_memory(root),
        torch_version(),
        way_to_node_0(environment),
    )


def gpu_count(root: Path, expected: int | None, source: str = "") -> Verdict:
    """Judge the GPUs on the PCI bus: as many as expected, all of one known model."""
    found = gpus.find_gpus(sysfs.Host(root))
    text = f"{len(found.gpus)} x {found.name}".rstrip(" x")
    wish = "" if expected is None else str(expected)
    if found.verdict in (gpus.UNKNOWN, gpus.MIXED):
        verdict = UNKNOWN if found.verdict == gpus.UNKNOWN else FAIL
        return Verdict(
            "preflight_gpus",
            "",
            verdict,
            expected=wish,
            found=text,
            source=source,
            reason=found.reason,
            fix="look at the node's PCI devices and its driver",
        )
    if expected is not None and len(found.gpus) != expected:
        return Verdict(
            "preflight_gpus",
            "",
            FAIL,
            expected=wish,
            found=text,
            source=source,
            reason="another number of GPUs",
            fix="look for one that fell off the bus: lspci, dmesg",
        )
    return Verdict("preflight_gpus", "", PASS if found.gpus else SKIPPED, expected=wish, found=text, source=source, reason=found.reason)


def free_space(run_dir: Path, min_free_gib: float) -> Verdict:
    """Judge the room in the run folder."""
    try:
        free = shutil.disk_usage(run_dir).free / _GIB
    except OSError as error:
        return Verdict(
            "preflight_space",
            "",
            UNKNOWN,
            expected=f">= {min_free_gib}",
            unit="GiB",
            reason=str(error),
            fix="see that the run folder is there",
        )
    verdict = PASS if free >= min_free_gib else FAIL
    return Verdict(
        "preflight_space",
        "",
        verdict,
        expected=f">= {min_free_gib}",
        found=f"{free:.1f}",
        unit="GiB",
        fix=f"make room on the file system of {run_dir}",
    )


def locked_memory(*, has_rdma: bool) -> Verdict:
    """Judge how much memory this process may lock."""
    if not has_rdma:
        return Verdict("preflight_memlock", "", SKIPPED, reason="no active RDMA port")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = limit == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{limit / _GIB:.2f} GiB"
    source = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
    return Verdict(
        "preflight_memlock",
        "",
        PASS if unlimited else FAIL,
        expected="unlimited",
        found=found,
        source=source,
        fix="apply the phase baseline, or in a container --ulimit memlock=-1",
    )


def shared_memory(root: Path) -> Verdict:
    """Judge the size of /dev/shm."""
    try:
        size = shutil.disk_usage(root / "dev/shm").total / _GIB
    except OSError as error:
        return Verdict("preflight_shm", "", UNKNOWN, expected=f">= {_SHM_GIB}", unit="GiB", reason=str(error), fix="mount /dev/shm")
    return Verdict(
        "preflight_shm",
        "",
        PASS if size >= _SHM_GIB else FAIL,
        expected=f">= {_SHM_GIB}",
        found=f"{size:.1f}",
        unit="GiB",
        fix="in a container: --ipc host or --shm-size 16g",
    )


def torch_version() -> Verdict:
    """Judge whether this Python has torch."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Verdict(
            "preflight_torch",
            "",
            FAIL,
            found="none",
            reason=f"{sys.executable} has no torch",
            fix="set --venv or --python to the one that has it",
        )
    return Verdict("preflight_torch", "", PASS, found=version)


def way_to_node_0(environment: Mapping[str, str]) -> Verdict:
    """Judge whether the name of node 0 can be resolved."""
    address = environment.get("MASTER_ADDR", "")
    if not address:
        return Verdict("preflight_node_0", "", SKIPPED, reason="a run on one node")
    try:
        found = socket.getaddrinfo(address, None)[0][4][0]
    except OSError as error:
        return Verdict(
            "preflight_node_0",
            "",
            FAIL,
            found=address,
            reason=f"its name cannot be resolved: {error}",
            fix="see /etc/hosts and the name service of this node",
        )
    return Verdict("preflight_node_0", "", PASS, found=f"{address} is {found}")
