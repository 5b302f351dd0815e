"""What a check is, what it gets, and how it says what it found."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.verdicts import FAIL, PASS, SKIPPED, UNKNOWN, Verdict
from primus_bootstrap.launch.checks.expected import Expected
from primus_bootstrap.launch.detect import gpus, sysfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from primus_bootstrap.launch.detect.gpus import Gpu, GpuFindings

PREFIX = "preflight_"
_CONTAINERS = {
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
    ".singularity.d": "Apptainer",
    "run/secrets/kubernetes.io": "Kubernetes",
}
MACHINE, GPU, AMD, NVIDIA, RDMA = "a machine of its own", "a GPU", "an AMD GPU", "an NVIDIA GPU", "an RDMA device"


_SEE = "see `journalctl -k` for what its driver says"


class CannotTellError(Exception):
    """What a check needs cannot be had: the verdict is unknown, with this reason."""

    def __init__(self, reason: str, *, fix: str = _SEE) -> None:
        """Keep the reason and what to do about it."""
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True)
class Node:
    """The node that is looked at: its files, what is expected of it, and the environment for tools."""

    host: sysfs.Host
    expected: Expected = field(default_factory=Expected)
    environment: Mapping[str, str] = field(default_factory=dict)
    run_dir: Path = Path()
    min_free_gib: float = 10.0

    @cached_property
    def gpu_findings(self) -> GpuFindings:
        """What the PCI bus says of GPUs."""
        return gpus.find_gpus(self.host)

    def gpus_of(self, vendor: str) -> tuple[Gpu, ...]:
        """Return the GPUs of one vendor."""
        return tuple(gpu for gpu in self.gpu_findings.gpus if gpu.vendor == vendor)

    def pci(self, address: str) -> Path:
        """Return the sysfs folder of a PCI device."""
        return self.host.path("sys", "bus", "pci", "devices", address)


@dataclass(frozen=True)
class Check:
    """One check.

    `name` makes the record `preflight_<name>`; a check that answers several questions at once names its records in `records`. `needs`
    are the things without which it is skipped. `timeout_s` is when it is killed.
    """

    name: str
    meaning: str
    reads: str
    look: Callable[[Node], Iterable[Verdict]]
    needs: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    timeout_s: float = 10.0
    area: str = ""

    @property
    def record_names(self) -> tuple[str, ...]:
        """The names of the records that this check gives, without the prefix."""
        return self.records or (self.name,)


def judged(*, good: bool, reason: str, fix: str, **fields: str) -> Verdict:
    """Return a pass or a fail; a pass has no reason and nothing to mend."""
    return Verdict(verdict=PASS, **_named(fields)) if good else Verdict(verdict=FAIL, reason=reason, fix=fix, **_named(fields))


def passed(**fields: str) -> Verdict:
    """Return a pass."""
    return Verdict(verdict=PASS, **_named(fields))


def unknown(reason: str, *, fix: str = _SEE, **fields: str) -> Verdict:
    """Return an unknown."""
    return Verdict(verdict=UNKNOWN, reason=reason, fix=fix, **_named(fields))


def skipped(reason: str, **fields: str) -> Verdict:
    """Return a skipped."""
    return Verdict(verdict=SKIPPED, reason=reason, **_named(fields))


def _named(fields: Mapping[str, str]) -> dict[str, Any]:
    """The runner names check and host."""
    return {"check": "", "host": "", **fields}


def container(node: Node) -> str:
    """Return whose container this is, an empty string on a machine of its own."""
    named = sysfs.read_text(node.host.path("run", "systemd", "container"))
    if named is not None:
        return named or "some"
    return next((kind for path, kind in _CONTAINERS.items() if node.host.path(path).exists()), "")


def missing(check: Check, node: Node) -> Verdict | None:
    """Return why a check has nothing to look at here, None where it has."""
    kind = container(node) if MACHINE in check.needs else ""
    if kind:
        return skipped(f"it is the machine's below this {kind} container")
    if {GPU, AMD, NVIDIA} & set(check.needs):
        found = node.gpu_findings
        if found.problems and not found.gpus:
            return unknown(found.reason, fix="see preflight_gpus")
        if not found.gpus:
            return skipped(found.reason or "no GPU on the PCI bus")
        vendor = "amd" if AMD in check.needs else "nvidia" if NVIDIA in check.needs else ""
        if vendor and not node.gpus_of(vendor):
            return skipped(f"no GPU of {vendor.upper()} on the PCI bus")
    if RDMA in check.needs and not listed(node.host.path("sys", "class", "infiniband")):
        return skipped("no RDMA device")
    return None


def listed(path: Path) -> tuple[str, ...]:
    """Return the sorted names in a folder, none where it is not there.

    Raises:
        CannotTellError: It is there and cannot be read.
    """
    try:
        return tuple(sorted(os.listdir(path)))  # noqa: PTH208 - the same call for a path that is a link to a folder
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise CannotTellError(f"{path} cannot be read: {error.strerror}", fix="run it as root") from error


def text_of(path: Path) -> str:
    """Return what a file says.

    Raises:
        CannotTellError: It cannot be read.
    """
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError as error:
        fix = "run it as root" if isinstance(error, PermissionError) else _SEE
        raise CannotTellError(f"{path} cannot be read: {error.strerror}", fix=fix) from error


def number_of(path: Path) -> int:
    """Return the number in a file.

    Raises:
        CannotTellError: It cannot be read, or holds none.
    """
    text = text_of(path)
    try:
        return int(text)
    except ValueError as error:
        raise CannotTellError(f"{path} holds no number: {text[:60]!r}") from error
