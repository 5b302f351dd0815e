"""How many nodes and processes a run has, which node this is, and where the processes meet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.detect.gpus import MIXED, NONE, OK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.commandline.layered_settings import Settings
    from primus_bootstrap.launch.detect.gpus import GpuFindings

DEFAULT_PORT = 29400  # torchrun's own for c10d: https://docs.pytorch.org/docs/stable/elastic/run.html
# Below the range that Linux gives to outgoing connections (32768-60999, ip_local_port_range).
_FIRST_PORT, _PORTS = 10000, 20000
_VISIBLE = {
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "nvidia": ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
}


@dataclass(frozen=True)
class Topology:
    """The shape of a run as one node sees it. `reasons` says where each number comes from."""

    nnodes: int = 1
    node_rank: int = 0
    nproc: int = 1
    master_addr: str = ""
    master_port: int = 0
    rendezvous: str = "static"
    single: bool = False
    reasons: tuple[tuple[str, str], ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks of this node, where nodes are numbered beforehand."""
        return tuple(range(self.node_rank * self.nproc, (self.node_rank + 1) * self.nproc))


def make_topology(settings: Settings, environment: Mapping[str, str], gpus: GpuFindings) -> Topology:
    """Resolve what the settings leave to `auto`.

    Raises:
        PlanError: A number is missing that cannot be guessed, or two numbers contradict each other.
    """
    slurm = settings["direct.nodes_from"] == "slurm"
    found = _slurm_facts(environment) if slurm else {}
    facts = _Facts(settings, environment, found)
    nnodes = facts.number("nnodes", "NNODES", 1)
    node_rank = facts.number("node_rank", "NODE_RANK", 0)
    single = bool(settings["direct.single"]) or environment.get("RUN_MODE") == "single"
    nproc = 1 if single else _nproc(settings, environment, gpus, facts)
    address, port = "", 0
    if nnodes > 1:
        address = facts.text("master_addr", "MASTER_ADDR")
        port = facts.number("master_port", "MASTER_PORT", DEFAULT_PORT)
    if single and nnodes > 1:
        raise PlanError(f"--single means one process, and there are {nnodes} nodes", fix="leave --single out, or set --nnodes 1")
    if nproc < 1 or nnodes < 1:
        raise PlanError(f"{nnodes} nodes with {nproc} processes are no run", fix="set --nnodes and --nproc to 1 or more")
    if node_rank >= nnodes:
        raise PlanError(f"node_rank is {node_rank}, and there are {nnodes} nodes", fix=f"number the nodes from 0 to {nnodes - 1}")
    if nnodes > 1 and not address:
        raise PlanError(f"{nnodes} nodes and no master_addr", fix="set --master-addr to the host name or address of node 0")
    if nnodes > 1 and facts.reasons["node_rank"] == "default":
        # Two nodes that both take themselves for node 0 wait for each other, until a time-out that names neither.
        fix = "set --node-rank on each: 0 on the node of --master-addr, then 1, 2, …"
        raise PlanError(f"{nnodes} nodes, and which one this is was not said", fix=fix)
    reasons = tuple(facts.reasons.items())
    return Topology(nnodes, node_rank, nproc, address, port, settings["direct.rendezvous"], single, reasons)


class _Facts:
    """Looks a value up: the setting, then what Slurm says, then the variable that launchers share, then the default."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], found: Mapping[str, str]) -> None:
        self.settings, self.environment, self.found = settings, environment, found
        self.reasons: dict[str, str] = {}

    def text(self, name: str, variable: str, default: str = "") -> str:
        value = self.settings[f"direct.{name}"]
        if value not in ("", "auto"):
            self.reasons[name] = self.settings.origin(f"direct.{name}")
            return str(value)
        if name in self.found:
            self.reasons[name] = "slurm"
            return self.found[name]
        if self.environment.get(variable):
            self.reasons[name] = f"environment {variable}"
            return self.environment[variable]
        self.reasons[name] = "default"
        return default

    def number(self, name: str, variable: str, default: int) -> int:
        text = self.text(name, variable, str(default))
        if not text.isdecimal():
            raise PlanError(f"{name}: {text!r} is no number ({self.reasons[name]})", fix=f"give a number from 0 on, or unset {variable}")
        return int(text)


def _nproc(settings: Settings, environment: Mapping[str, str], gpus: GpuFindings, facts: _Facts) -> int:
    value = settings["direct.nproc"]
    if value != "auto" or "nproc" in facts.found or environment.get("GPUS_PER_NODE"):
        return facts.number("nproc", "GPUS_PER_NODE", 1)
    for variable in _VISIBLE.get(gpus.vendor, ()):
        if environment.get(variable, "all") != "all":
            facts.reasons["nproc"] = f"the devices in {variable}"
            return len([item for item in environment[variable].split(",") if item.strip()])
    if gpus.verdict in (OK, MIXED):
        facts.reasons["nproc"] = f"GPUs of this host: {gpus.name or 'mixed models'}"
        return len(gpus.gpus)
    if gpus.verdict == NONE:
        facts.reasons["nproc"] = gpus.reason
        return 1
    raise PlanError(f"how many GPUs this host has is unknown: {gpus.reason}", fix="set --nproc to the number of processes of this node")


def _slurm_facts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the variables of a Slurm step say.

    Raises:
        PlanError: This is no Slurm step.
    """
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    number, job = environment.get("SLURM_NODEID"), environment.get("SLURM_JOB_ID")
    if not nodes or number is None or not job:
        raise PlanError("nodes_from is slurm, and this is no Slurm step", fix="start it by `primus-cli slurm srun … -- …`")
    hosts = expand_nodes(nodes)
    step = environment.get("SLURM_STEP_ID", "0")
    port = _FIRST_PORT + (int(job) * 31 + int(step if step.isdecimal() else "0")) % _PORTS
    facts = {"nnodes": str(len(hosts)), "node_rank": number, "master_addr": hosts[0], "master_port": str(port)}
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    return {**facts, "nproc": gpus} if gpus.isdecimal() else facts


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm node list like `gpu[001-003,7],login1`, in its order."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        hosts.extend(_expand_part(part))
    if not hosts:
        raise UsageError(f"{text!r} is no node list", fix="give hosts like gpu[001-003],login1")
    return tuple(hosts)


def _expand_part(part: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", part)
    if not match:
        return [part]
    names: list[str] = []
    for item in match[1].split(","):
        first, _, last = item.partition("-")
        numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
        names.extend(f"{part[: match.start()]}{number}{part[match.end() :]}" for number in numbers)
    return [host for name in names for host in _expand_part(name)]
