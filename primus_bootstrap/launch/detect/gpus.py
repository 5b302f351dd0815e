"""The GPU model of a host from PCI ids in sysfs alone: no vendor tool, no driver, no guess.

Counting: one GPU is one PCI device, which is what the runtimes show as one device. So a card of MI250 or MI250X, which has two dies
(GCDs), counts as two. A virtual function whose physical function is on the same host is not counted again. Compute partitions (CPX and
the like) are no PCI devices and not counted.
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
    """One GPU on the PCI bus.

    `models` has more than one entry where products share the PCI id, and none where no product is known for it. `numa_node` is None
    where the firmware does not say (-1 in sysfs). `path` starts at the PCI host bridge.
    """

    address: str
    vendor: str
    device_id: str
    subsystem: str
    models: tuple[str, ...]
    product: str
    memory_gib: int | None
    form: str
    virtual: bool
    numa_node: int | None
    path: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The model, or every model that the id may mean, or an empty string."""
        return "/".join(self.models)


@dataclass(frozen=True)
class Ignored:
    """A PCI device that looks like a GPU and is not counted, with the reason."""

    address: str
    device_id: str
    reason: str


@dataclass(frozen=True)
class GpuFindings:
    """What the PCI bus says. `verdict` is ok, none, mixed or unknown; `reason` says why it is not ok."""

    verdict: str
    reason: str
    gpus: tuple[Gpu, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that all GPUs may be: one where the host is clear, several where an id is shared, none otherwise."""
        return self.gpus[0].models if self.verdict == OK else ()

    @property
    def name(self) -> str:
        """The model's name, empty where it is not clear."""
        return "/".join(self.models)

    @property
    def vendor(self) -> str:
        """The vendor that all GPUs share, `cpu` without GPUs, empty where vendors are mixed or the bus could not be read."""
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
    """Return what data/gpus.yml says of a model."""
    return dict(catalogue()["models"][model])


def find_gpus(host: sysfs.Host) -> GpuFindings:
    """Read the PCI bus of a host."""
    if not host.has_sysfs():
        return GpuFindings(UNKNOWN, f"there is no sysfs under {host.root}", problems=(f"{host.path('sys')} cannot be listed",))
    devices = host.path("sys", "bus", "pci", "devices")
    gpus: list[Gpu] = []
    ignored: list[Ignored] = []
    problems: list[str] = []
    for address in sysfs.names_in(devices):
        found = _look_at(devices / address, address)
        if isinstance(found, Gpu):
            gpus.append(found)
        elif isinstance(found, Ignored):
            ignored.append(found)
        elif found:
            problems.append(found)
    verdict, reason = _judge(gpus, problems)
    return GpuFindings(verdict, reason, tuple(gpus), tuple(ignored), tuple(problems))


def _look_at(path: Path, address: str) -> Gpu | Ignored | str | None:
    """Tell what one PCI device is; a string says what could not be read of something that may be a GPU."""
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
        return _stranger(path, address, vendor, key if device is not None else "", pci_class)
    parent = sysfs.link_name(path / "physfn")
    if parent:
        return Ignored(address, key, f"a virtual function of {parent}, which is on this host")
    return _gpu(path, address, vendor, key, known)


def _stranger(path: Path, address: str, vendor: str, key: str, pci_class: int | None) -> Gpu | Ignored | str:
    """Tell what a GPU vendor's device with an unknown id is."""
    if not key:
        return f"{address}: the id of this {vendor} device cannot be read"
    if pci_class is None:
        return f"{address}: {key} is not a known GPU, and its class cannot be read"
    if pci_class == _VGA:
        return Ignored(address, key, "a display adapter, not one of the accelerators known here")
    return _gpu(path, address, vendor, key, {})


def _is_other_class(pci_class: int | None) -> bool:
    """Say whether a class code rules a GPU out; a class that could not be read does not."""
    return pci_class is not None and pci_class >> 8 not in (_DISPLAY, _ACCELERATORS)


def _other_vendor(address: str, key: str, pci_class: int | None) -> Ignored | None:
    """Name display adapters and accelerators of other vendors as not counted; all other devices are of no interest."""
    if pci_class is None:
        return None
    kind = "an accelerator of a vendor that is not known here" if pci_class >> 8 == _ACCELERATORS else "a display adapter"
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


def _judge(gpus: list[Gpu], problems: list[str]) -> tuple[str, str]:
    """Say whether the host is clear; a device that could not be read is never taken for good."""
    if problems:
        return UNKNOWN, "; ".join(problems)
    if not gpus:
        return NONE, "no GPU on the PCI bus"
    strangers = sorted({gpu.device_id for gpu in gpus if not gpu.models})
    if strangers:
        where = ", ".join(f"{gpu.address} ({gpu.device_id})" for gpu in gpus if not gpu.models)
        return UNKNOWN, f"no GPU model is known for {where}"
    kinds = Counter(f"{gpu.name} {gpu.form} {gpu.memory_gib} GiB" for gpu in gpus)
    if len(kinds) > 1:
        return MIXED, "more than one GPU model: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
    return OK, ""
