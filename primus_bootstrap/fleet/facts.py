"""What a probed host says about itself, typed; what it does not say, or says in a wrong form, is None or empty."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "primus.probe/1"

# `password` works with the password that was given; `wants_password` would need one that was not.
Sudo = Literal["root", "yes", "password", "wants_password", "wrong_password", "no"]


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds a path. `free_inodes_percent` is None where the file system has no such limit."""

    path: str
    size_gib: float
    free_gib: float
    free_inodes_percent: float | None
    read_only: bool


@dataclass(frozen=True, slots=True)
class PciGpu:
    """Display controllers and accelerators of one kind; `id` is `vendor:device`, `pci_class` is sysfs' `0x` and six digits."""

    id: str
    subsystem_device: str
    driver: str
    pci_class: str
    count: int


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface; speed and MTU are None where the kernel does not know them (a link that is down)."""

    name: str
    state: str
    speed_mbit_per_s: int | None
    mtu: int | None
    mac: str
    address: str
    driver: str


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device, in the kernel's own words."""

    device: str
    port: str
    state: str
    link_layer: str
    rate: str


@dataclass(frozen=True, slots=True)
class Clock:
    """How the host's clock stands to the controller's.

    `offset_s` is positive where the host is ahead; the truth lies within `offset_s` ± `error_s`, which is half the time
    that the answer was under way. `synchronised` is the kernel's own word, None where it has none.
    """

    offset_s: float
    error_s: float
    synchronised: bool | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Everything that `probe_host.py` reads."""

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
        """Whether `apply` will get administrator rights here."""
        return self.sudo in {"root", "yes", "password"}

    def free_gib(self, path: str) -> float | None:
        """Return the free space at a path, None where the host has no such path."""
        return next((disk.free_gib for disk in self.disks if disk.path == path), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return asdict(self)


def clock_of(data: Mapping[str, Any], sent: float, received: float) -> Clock:
    """Return the clock's offset by the four moments of NTP (RFC 5905, section 8): sent, read, done, received."""
    read, done = float(data["read_at"]), float(data["done_at"])
    offset = ((read - sent) + (done - received)) / 2
    error = max(0.0, (received - sent) - (done - read)) / 2
    return Clock(round(offset, 4), round(error, 4), data.get("synchronised"))


def parse_facts(data: Mapping[str, Any], *, sent: float, received: float) -> HostFacts:
    """Read the facts of one host.

    Raises:
        ValueError: the data is not what `probe_host.py` of this version writes.
    """
    try:
        system, memory = data["os"], data["memory"]
        return HostFacts(
            hostname=str(data["hostname"]),
            os_id=str(system["id"]),
            os_version=str(system["version"]),
            os_name=str(system["name"]),
            kernel=str(data["kernel"]),
            arch=str(data["arch"]),
            python=str(data["python"]),
            cores=int(data["cores"]),
            memory_gib=float(memory["total_gib"]),
            memory_available_gib=float(memory["available_gib"]),
            swap_gib=float(memory["swap_gib"]),
            disks=tuple(Disk(**disk) for disk in data["disks"]),
            clock=clock_of(data["clock"], sent, received),
            sudo=data["sudo"],
            sudo_message=str(data["sudo_message"]),
            gpus=tuple(PciGpu(gpu["id"], gpu["subsystem_device"], gpu["driver"], gpu["class"], int(gpu["count"])) for gpu in data["gpus"]),
            nics=tuple(Nic(**nic) for nic in data["nics"]),
            rdma=tuple(RdmaPort(**port) for port in data["rdma"]),
            default_nic=str(data["default_nic"]),
            machine_id=str(data["machine_id"]),
            boot_id=str(data["boot_id"]),
            virtualisation=str(data["virtualisation"]),
            uptime_s=int(data["uptime_s"]),
            listening=tuple(int(port) for port in data["listening"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the answer lacks what this version writes: {error}") from None
