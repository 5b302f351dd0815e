"""Detect the GPU model of a host from the PCI ids in sysfs, without driver or vendor tool.

One PCI device counts as one GPU, as in the runtimes. So a card of MI250 or MI250X, which has two dies (GCDs), counts as two. A virtual
function whose physical function is on the same host does not count. Compute partitions (such as CPX) are not PCI devices and do not count.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VENDORS = {0x1002: "amd", 0x10DE: "nvidia"}
# PCI class codes (https://pci-ids.ucw.cz/read/PD/): 03xx display controllers, 12xx processing accelerators.
_VGA, _ACCELERATORS, _DISPLAY = 0x0300, 0x12, 0x03

OK, NONE, MIXED, UNKNOWN = "ok", "none", "mixed", "unknown"


@dataclass(frozen=True)
class Gpu:
    """One GPU on the PCI bus."""

    address: str
    vendor: str
    device_id: str
    subsystem: str
    models: tuple[str, ...]  # the products with this PCI id: several if they share it, none if it is unknown
    product: str
    memory_gib: int | None
    form: str
    virtual: bool
    numa_node: int | None  # None if the firmware does not report it (-1 in sysfs)
    path: tuple[str, ...] = field(default=(), compare=False)  # the PCI devices from the host bridge to the GPU

    @property
    def name(self) -> str:
        """The model, all models that share the id, or an empty string."""
        return "/".join(self.models)


@dataclass(frozen=True)
class Ignored:
    """A PCI device that is similar to a GPU and is not counted."""

    address: str
    device_id: str
    reason: str


@dataclass(frozen=True)
class GpuFindings:
    """The GPUs on the PCI bus. `verdict` is ok, none, mixed or unknown; `reason` explains a verdict other than ok."""

    verdict: str
    reason: str
    gpus: tuple[Gpu, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The model of all GPUs: one, several if they share an id, none if the verdict is not ok."""
        return self.gpus[0].models if self.verdict == OK else ()

    @property
    def name(self) -> str:
        """The model's name, or an empty string if the verdict is not ok."""
        return "/".join(self.models)

    @property
    def vendor(self) -> str:
        """The vendor of all GPUs; `cpu` without GPUs; empty if vendors are mixed or a device could not be read."""
        if self.verdict == NONE:
            return "cpu"
        vendors = {gpu.vendor for gpu in self.gpus}
        return vendors.pop() if len(vendors) == 1 and not self.problems else ""


@cache
def catalogue() -> Mapping[str, Any]:
    """Return data/gpus.yml."""
    text = pkgutil.get_data("primus_bootstrap.launch", "data/gpus.yml")
    return dict(yaml.safe_load(text or b""))


def model_facts(model: str) -> Mapping[str, Any]:
    """Return the entry of a model in data/gpus.yml."""
    return dict(catalogue()["models"][model])


def find_gpus(host: sysfs.Host) -> GpuFindings:
    """Return the GPUs on the PCI bus of a host."""
    if not host.has_sysfs():
        return GpuFindings(UNKNOWN, f"no sysfs below {host.root}", problems=(f"{host.path('sys')} cannot be listed",))
    devices = host.path("sys", "bus", "pci", "devices")
    gpus: list[Gpu] = []
    ignored: list[Ignored] = []
    problems: list[str] = []
    for address in sysfs.names_in(devices):
        found = _classify(devices / address, address)
        if isinstance(found, Gpu):
            gpus.append(found)
        elif isinstance(found, Ignored):
            ignored.append(found)
        elif found:
            problems.append(found)
    verdict, reason = _verdict(gpus, problems)
    return GpuFindings(verdict, reason, tuple(gpus), tuple(ignored), tuple(problems))


def _classify(path: Path, address: str) -> Gpu | Ignored | str | None:
    """Classify one PCI device. A string is the problem of a device that may be a GPU and cannot be read."""
    vendor_id = sysfs.read_int(path / "vendor", base=16)
    device = sysfs.read_int(path / "device", base=16)
    class_code = sysfs.read_int(path / "class", base=16)
    pci_class = None if class_code is None else class_code >> 8
    key = f"{vendor_id or 0:04x}:{device or 0:04x}"
    known = catalogue()["ids"].get(key)
    if known is None and _is_other_class(pci_class):
        return None
    if vendor_id is None:
        return f"{address}: its vendor id cannot be read"
    vendor = _VENDORS.get(vendor_id)
    if vendor is None:
        return _other_vendor(address, key, pci_class)
    if known is None:
        return _unknown_id(path, address, vendor, key if device is not None else "", pci_class)
    parent = sysfs.link_name(path / "physfn")
    if parent:
        return Ignored(address, key, f"a virtual function of {parent}, which is on this host")
    return _gpu(path, address, vendor, key, known)


def _unknown_id(path: Path, address: str, vendor: str, key: str, pci_class: int | None) -> Gpu | Ignored | str:
    """Classify a GPU vendor's device with an unknown id."""
    if not key:
        return f"{address}: the id of this {vendor} device cannot be read"
    if pci_class is None:
        return f"{address}: {key} is not a known GPU, and its class cannot be read"
    if pci_class == _VGA:
        return Ignored(address, key, "a display adapter, not a known accelerator")
    return _gpu(path, address, vendor, key, {})


def _is_other_class(pci_class: int | None) -> bool:
    """Return whether the class code excludes a GPU. An unreadable class does not."""
    return pci_class is not None and pci_class >> 8 not in (_DISPLAY, _ACCELERATORS)


def _other_vendor(address: str, key: str, pci_class: int | None) -> Ignored | None:
    """Report display adapters and accelerators of other vendors as ignored."""
    if pci_class is None:
        return None
    kind = "an accelerator of an unsupported vendor" if pci_class >> 8 == _ACCELERATORS else "a display adapter"
    return Ignored(address, key, kind)


def _gpu(path: Path, address: str, vendor: str, key: str, known: Mapping[str, Any]) -> Gpu:
    models = tuple(known.get("models", ()))
    facts = model_facts(models[0]) if models else {}
    node = sysfs.read_int(path / "numa_node")
    subsystem = [sysfs.read_int(path / f"subsystem_{part}", base=16) for part in ("vendor", "device")]
    return Gpu(
        address=address,
        vendor=vendor,
        device_id=key,
        subsystem="" if None in subsystem else ":".join(f"{number:04x}" for number in subsystem if number is not None),
        models=models,
        product=str(known.get("product", "")),
        memory_gib=known.get("memory_gib", facts.get("memory_gib")),
        form=str(known.get("form", facts.get("form", ""))),
        virtual=bool(known.get("virtual", False)),
        numa_node=node if node is not None and node >= 0 else None,
        path=sysfs.device_path(path),
    )


def _verdict(gpus: list[Gpu], problems: list[str]) -> tuple[str, str]:
    """Return verdict and reason. Any unreadable device makes the host unknown."""
    if problems:
        return UNKNOWN, "; ".join(problems)
    if not gpus:
        return NONE, "no GPU on the PCI bus"
    unknown = [f"{gpu.address} ({gpu.device_id})" for gpu in gpus if not gpu.models]
    if unknown:
        return UNKNOWN, f"no GPU model is known for {', '.join(unknown)}"
    kinds = Counter(f"{gpu.name} {gpu.form} {gpu.memory_gib} GiB" for gpu in gpus)
    if len(kinds) > 1:
        return MIXED, "more than one GPU model: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
    return OK, ""
