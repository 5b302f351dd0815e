"""The facts of a probed host as typed values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from primus_bootstrap.core.structured import InvalidDataError, read, readable

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "primus.probe/1"

# `password`: works with the given password; `wants_password`: needs a password, and none was given.
Sudo = Literal["root", "yes", "password", "wants_password", "wrong_password", "no"]


@readable
@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a path. `free_inodes_percent` is None if the file system has no limit of inodes."""

    path: str
    size_gib: float
    free_gib: float
    free_inodes_percent: float | None
    read_only: bool


@readable
@dataclass(frozen=True, slots=True)
class PciGpu:
    """Display controllers and accelerators of one kind; `id` is `vendor:device`, `pci_class` is `0x` and six digits as in sysfs."""

    id: str
    subsystem_device: str
    driver: str
    pci_class: str
    count: int


@readable
@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface. Speed and MTU are None if the kernel does not report them, for example without a link."""

    name: str
    state: str
    speed_mbit_per_s: int | None
    mtu: int | None
    mac: str
    address: str
    driver: str


@readable
@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device, with the values of sysfs."""

    device: str
    port: str
    state: str
    link_layer: str
    rate: str


@readable
@dataclass(frozen=True, slots=True)
class Clock:
    """The offset of the host's clock to the controller's.

    `offset_s` is positive if the host is ahead. The true offset is within `offset_s` ± `error_s`, half of the network delay.
    `synchronised` is the kernel's state, or None.
    """

    offset_s: float
    error_s: float
    synchronised: bool | None


@readable
@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts of `probe_host.py`."""

    hostname: str
    os_id: str
    os_version: str
    os_name: str
    kernel: str
    arch: str
    python: str
    cores: int
    memory_gib: float
    memory_available_gib: float
    swap_gib: float
    disks: tuple[Disk, ...]
    clock: Clock
    sudo: Sudo
    sudo_message: str
    gpus: tuple[PciGpu, ...]
    nics: tuple[Nic, ...]
    rdma: tuple[RdmaPort, ...]
    default_nic: str
    machine_id: str
    boot_id: str
    virtualisation: str
    uptime_s: int
    listening: tuple[int, ...]

    @property
    def can_become_root(self) -> bool:
        """Whether `apply` can become root on the host."""
        return self.sudo in {"root", "yes", "password"}

    def free_gib(self, path: str) -> float | None:
        """Return the free space at a path, or None if the host has no such path."""
        return next((disk.free_gib for disk in self.disks if disk.path == path), None)


def clock_of(data: Mapping[str, Any], sent: float, received: float) -> Clock:
    """Compute the clock's offset from the four timestamps of NTP (RFC 5905, section 8): sent, read, done, received."""
    read, done = float(data["read_at"]), float(data["done_at"])
    offset = ((read - sent) + (done - received)) / 2
    error = max(0.0, (received - sent) - (done - read)) / 2
    return Clock(round(offset, 4), round(error, 4), data.get("synchronised"))


def parse_facts(data: Mapping[str, Any], *, sent: float, received: float) -> HostFacts:
    """Parse the facts of one host.

    Raises:
        ValueError: The data is not the output of this version of `probe_host.py`.
    """
    try:
        system, memory = data["os"], data["memory"]
        values = {
            **data,
            **{f"os_{name}": system[name] for name in ("id", "version", "name")},
            "memory_gib": memory["total_gib"],
            "memory_available_gib": memory["available_gib"],
            "swap_gib": memory["swap_gib"],
            "clock": asdict(clock_of(data["clock"], sent, received)),
            "gpus": [{**gpu, "pci_class": gpu["class"]} for gpu in data["gpus"]],
        }
        return read(HostFacts, values, ignore_unknown=True)
    except (KeyError, TypeError, InvalidDataError) as error:
        raise ValueError(f"a field is missing or invalid: {error}") from None
