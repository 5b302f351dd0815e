"""Compute the number of nodes and processes of a run, the number of this node, and the rendezvous address."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.detect.gpus import MIXED, NONE, OK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.detect.gpus import GpuFindings
    from primus_bootstrap.launch.settings.layered_settings import Settings

DEFAULT_PORT = 29400  # torchrun's default for c10d: https://docs.pytorch.org/docs/stable/elastic/run.html
# Below the range of outgoing connections on Linux (32768-60999, ip_local_port_range).
_FIRST_PORT, _PORTS = 10000, 20000
_VISIBLE = {
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "nvidia": ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
}
# Values that restrict nothing. With CDI, the container toolkit sets NVIDIA_VISIBLE_DEVICES=void, and the devices come from the CDI file:
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
_ALL_DEVICES = ("all", "void")
_NO_DEVICES = ("", "none", "NoDevFiles")
_RANGE = "[0-9]{1,9}(?:-[0-9]{1,9})?"
_RANGES = rf"\[{_RANGE}(?:,{_RANGE})*\]"
_NODES = re.compile(rf"(?:[^\s,\[\]]|{_RANGES})+")
_NODE_LIST = re.compile(rf"{_NODES.pattern}(?:,{_NODES.pattern})*")
_PIECES = re.compile(r"([^\[\]]*)(?:\[([^\]]*)\]|$)")
_MOST_NODES = 65536  # more than any cluster has; a mistyped range would fill the memory


@dataclass(frozen=True)
class Topology:
    """The nodes and processes of a run, for one node. `reasons` has the origin of each value by name."""

    nnodes: int = 1
    node_rank: int = 0
    nproc: int = 1
    master_addr: str = ""
    master_port: int = 0
    rendezvous: str = "static"
    single: bool = False
    reasons: tuple[tuple[str, str], ...] = ()
    devices: int = 0  # devices that each process uses; 0: one

    @property
    def all_devices(self) -> int:
        """The devices of the run."""
        return self.nnodes * self.nproc * (self.devices or 1)

    def per_node(self) -> Topology:
        """Return the topology of a program that starts one process per node for all its devices."""
        return replace(self, nproc=1, single=True, devices=self.nproc * (self.devices or 1))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks of this node, valid for the static rendezvous."""
        return tuple(range(self.node_rank * self.nproc, (self.node_rank + 1) * self.nproc))


def make_topology(settings: Settings, environment: Mapping[str, str], gpus: GpuFindings) -> Topology:
    """Compute the values that the settings leave at `auto`.

    Raises:
        PlanError: A required value is missing, or two values contradict each other.
    """
    slurm = _slurm_values(environment) if settings["direct.nodes_from"] == "slurm" else {}
    values = _Values(settings, environment, slurm)
    nnodes = values.number("nnodes", "NNODES", 1)
    node_rank = values.number("node_rank", "NODE_RANK", 0)
    single = bool(settings["direct.single"]) or environment.get("RUN_MODE") == "single"
    nproc = 1 if single else _nproc(settings, environment, gpus, values)
    address, port = "", 0
    if nnodes > 1:
        address = values.text("master_addr", "MASTER_ADDR")
        port = values.number("master_port", "MASTER_PORT", DEFAULT_PORT)
    if single and nnodes > 1:
        raise PlanError(f"--single starts one process, but nnodes is {nnodes}", fix="remove --single, or pass --nnodes 1")
    if nproc < 1 or nnodes < 1:
        raise PlanError(f"nnodes is {nnodes} and nproc is {nproc}; both must be at least 1", fix="pass --nnodes and --nproc with 1 or more")
    if node_rank >= nnodes:
        raise PlanError(f"node_rank is {node_rank}, but nnodes is {nnodes}", fix=f"number the nodes from 0 to {nnodes - 1}")
    if nnodes > 1 and not address:
        raise PlanError(f"nnodes is {nnodes}, but master_addr is not set", fix="pass --master-addr with the host name or address of node 0")
    if nnodes > 1 and values.reasons["node_rank"] == "default":
        # Two nodes with the number 0 would wait for each other until a time-out that names neither.
        fix = "pass --node-rank on each node: 0 on the node of --master-addr, then 1, 2, …"
        raise PlanError(f"nnodes is {nnodes}, but the number of this node is not set", fix=fix)
    reasons = tuple(values.reasons.items())
    return Topology(nnodes, node_rank, nproc, address, port, settings["direct.rendezvous"], single, reasons)


class _Values:
    """Looks up a value and records its origin: the setting, the Slurm step, the variable that launchers share, the default."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], slurm: Mapping[str, str]) -> None:
        self.settings, self.environment, self.slurm = settings, environment, slurm
        self.reasons: dict[str, str] = {}

    def text(self, name: str, variable: str, default: str = "") -> str:
        value = self.settings[f"direct.{name}"]
        if value not in ("", "auto"):
            self.reasons[name] = self.settings.origin(f"direct.{name}")
            return str(value)
        if name in self.slurm:
            self.reasons[name] = "slurm"
            return self.slurm[name]
        if self.environment.get(variable):
            self.reasons[name] = f"environment {variable}"
            return self.environment[variable]
        self.reasons[name] = "default"
        return default

    def number(self, name: str, variable: str, default: int) -> int:
        text = self.text(name, variable, str(default))
        if not text.isdecimal():
            raise PlanError(f"{name}: {text!r} is not a number ({self.reasons[name]})", fix=f"give a number from 0, or unset {variable}")
        return int(text)


def _nproc(settings: Settings, environment: Mapping[str, str], gpus: GpuFindings, values: _Values) -> int:
    setting = settings["direct.nproc"]
    if setting != "auto" or "nproc" in values.slurm or environment.get("GPUS_PER_NODE"):
        return values.number("nproc", "GPUS_PER_NODE", 1)
    for variable in _VISIBLE.get(gpus.vendor, ()):
        devices = environment.get(variable, "all").strip()
        if devices in _NO_DEVICES:
            what = f"{variable}={devices} hides every GPU, so there would be 0 processes"
            raise PlanError(what, fix=f"unset {variable}, or pass --nproc with the number of processes per node")
        if devices not in _ALL_DEVICES:
            values.reasons["nproc"] = f"the devices in {variable}"
            return len([item for item in devices.split(",") if item.strip()])
    if gpus.verdict in (OK, MIXED):
        values.reasons["nproc"] = f"GPUs of this host: {gpus.name or 'mixed models'}"
        return len(gpus.gpus)
    if gpus.verdict == NONE:
        values.reasons["nproc"] = gpus.reason
        return 1
    raise PlanError(f"the number of GPUs of this host is unknown: {gpus.reason}", fix="pass --nproc with the number of processes per node")


def _slurm_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a Slurm step from its variables.

    Raises:
        PlanError: This process is not in a Slurm step.
    """
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    number, job = environment.get("SLURM_NODEID"), environment.get("SLURM_JOB_ID")
    if not nodes or number is None or not job:
        raise PlanError("nodes_from is slurm, but this is not a Slurm step", fix="start the run with `primus-cli slurm srun … -- …`")
    hosts = expand_nodes(nodes)
    step = environment.get("SLURM_STEP_ID", "0")
    port = _FIRST_PORT + (int(job) * 31 + int(step if step.isdecimal() else "0")) % _PORTS
    values = {"nnodes": str(len(hosts)), "node_rank": number, "master_addr": hosts[0], "master_port": str(port)}
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    return {**values, "nproc": gpus} if gpus.isdecimal() else values


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm node list such as `gpu[001-003,7],login1`, in its order.

    Raises:
        UsageError: It is not a node list, or has too many hosts.
    """
    if not _NODE_LIST.fullmatch(text):
        raise UsageError(f"{text!r} is not a node list", fix="write hosts as in gpu[001-003],login1")
    hosts: list[str] = []
    for part in _NODES.findall(text):
        hosts.extend(_expand_part(part, _MOST_NODES - len(hosts)))
    return tuple(hosts)


def _expand_part(part: str, most: int) -> list[str]:
    """Return the hosts of one part; `most` limits their number."""
    hosts = [""]
    for plain, ranges in _PIECES.findall(part):
        numbers = [number for item in ranges.split(",") for number in _numbers(item, most)] if ranges else [""]
        if len(hosts) * len(numbers) > most:
            raise UsageError(f"{part}: more than {_MOST_NODES} nodes", fix="correct the range")
        hosts = [f"{host}{plain}{number}" for host in hosts for number in numbers]
    return hosts


def _numbers(item: str, most: int) -> list[str]:
    """Return the numbers of a range such as 001-003, at most one more than `most`."""
    first, _, last = item.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    if not numbers:
        raise UsageError(f"{item} is not a range of nodes: it ends before it starts", fix=f"write {last}-{first}")
    return [str(number).zfill(len(first)) for number in numbers[: most + 1]]
