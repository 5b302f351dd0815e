"""The types of a check and its input, and functions that build verdicts and read files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UnknownError
from primus_bootstrap.core.verdicts import FAIL, PASS, SKIPPED, UNKNOWN, Verdict
from primus_bootstrap.launch.checks.expected import Expected
from primus_bootstrap.launch.detect import gpus, sysfs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from primus_bootstrap.launch.detect.gpus import Gpu, GpuFindings

PREFIX = "preflight_"
Verdicts = Iterable[Verdict]
_CONTAINERS = {
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
    ".singularity.d": "Apptainer",
    "run/secrets/kubernetes.io": "Kubernetes",
}
MACHINE, GPU, AMD, NVIDIA, RDMA = "no container", "a GPU", "an AMD GPU", "an NVIDIA GPU", "an RDMA device"

_SEE_KERNEL_LOG = "see `journalctl -k` for messages of the device's driver"


class UnavailableError(UnknownError):
    """A value that a check needs is not available; the verdict is `unknown`."""

    def __init__(self, what: str, *, fix: str = _SEE_KERNEL_LOG) -> None:
        """Store the reason and the fix."""
        super().__init__(what, fix=fix)


@dataclass(frozen=True)
class Node:
    """The node under test: its files, the expected values, and the environment for tools."""

    host: sysfs.Host
    expected: Expected = field(default_factory=Expected)
    environment: Mapping[str, str] = field(default_factory=dict)
    run_dir: Path = Path()
    min_free_gib: float = 10.0

    @cached_property
    def gpu_findings(self) -> GpuFindings:
        """The GPUs on the PCI bus."""
        return gpus.find_gpus(self.host)

    def gpus_of(self, vendor: str) -> tuple[Gpu, ...]:
        """Return the GPUs of one vendor."""
        return tuple(gpu for gpu in self.gpu_findings.gpus if gpu.vendor == vendor)

    def pci(self, address: str) -> Path:
        """Return the sysfs folder of a PCI device."""
        return self.host.path("sys", "bus", "pci", "devices", address)


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str  # a check with one record writes `preflight_<name>`
    meaning: str  # what a pass means
    reads: str  # the sources that the check reads
    run: Callable[[Node], Verdicts]  # returns the verdicts
    needs: tuple[str, ...] = ()  # prerequisites; without one of them the check is skipped
    records: tuple[str, ...] = ()  # names of the records, without prefix, if there are several
    timeout_s: float = 10.0  # time limit; the runner then kills the check
    area: str = ""  # set by the catalogue

    @property
    def record_names(self) -> tuple[str, ...]:
        """The names of this check's records, without the prefix."""
        return self.records or (self.name,)


def pass_or_fail(*, good: bool, reason: str, fix: str, **fields: str) -> Verdict:
    """Return a pass, or a fail with reason and fix."""
    return Verdict(verdict=PASS, **_unnamed(fields)) if good else Verdict(verdict=FAIL, reason=reason, fix=fix, **_unnamed(fields))


def passed(**fields: str) -> Verdict:
    """Return a pass."""
    return Verdict(verdict=PASS, **_unnamed(fields))


def unknown(reason: str, *, fix: str = _SEE_KERNEL_LOG, **fields: str) -> Verdict:
    """Return an unknown."""
    return Verdict(verdict=UNKNOWN, reason=reason, fix=fix, **_unnamed(fields))


def skipped(reason: str, **fields: str) -> Verdict:
    """Return a skipped."""
    return Verdict(verdict=SKIPPED, reason=reason, **_unnamed(fields))


def _unnamed(fields: Mapping[str, str]) -> dict[str, Any]:
    """Add empty names: the runner fills in check and host."""
    return {"check": "", "host": "", **fields}


def container_engine(node: Node) -> str:
    """Return the engine of the container that this process runs in, or an empty string outside containers."""
    named = sysfs.read_text(node.host.path("run", "systemd", "container"))
    if named is not None:
        return named or "unknown"
    return next((kind for path, kind in _CONTAINERS.items() if node.host.path(path).exists()), "")


def prerequisite_verdict(check: Check, node: Node) -> Verdict | None:
    """Return a skipped or unknown if a prerequisite of the check is missing, else None."""
    engine = container_engine(node) if MACHINE in check.needs else ""
    if engine:
        return skipped(f"this check runs on the host only, not in a container ({engine})")
    if {GPU, AMD, NVIDIA} & set(check.needs):
        found = node.gpu_findings
        if found.problems and not found.gpus:
            return unknown(found.reason, fix="see preflight_gpus")
        if not found.gpus:
            return skipped(found.reason or "no GPU on the PCI bus")
        vendor = "amd" if AMD in check.needs else "nvidia" if NVIDIA in check.needs else ""
        if vendor and not node.gpus_of(vendor):
            return skipped(f"no {vendor.upper()} GPU on the PCI bus")
    if RDMA in check.needs and not list_names(node.host.path("sys", "class", "infiniband")):
        return skipped("no RDMA device")
    return None


def list_names(path: Path) -> tuple[str, ...]:
    """Return the sorted names in a folder, or nothing if it does not exist.

    Raises:
        UnavailableError: The folder exists and cannot be read.
    """
    try:
        return tuple(sorted(os.listdir(path)))  # noqa: PTH208 - the same call for a path that is a link to a folder
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}", fix="run as root") from error


def require_text(path: Path) -> str:
    """Return the content of a file without surrounding white space.

    Raises:
        UnavailableError: The file cannot be read.
    """
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError as error:
        fix = "run as root" if isinstance(error, PermissionError) else _SEE_KERNEL_LOG
        raise UnavailableError(f"{path} cannot be read: {error.strerror}", fix=fix) from error


def require_number(path: Path) -> int:
    """Return the number in a file.

    Raises:
        UnavailableError: The file cannot be read, or contains no number.
    """
    text = require_text(path)
    try:
        return int(text)
    except ValueError as error:
        raise UnavailableError(f"{path} contains no number: {text[:60]!r}") from error
