# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Generate the lines of slurm.conf, gres.conf and topology.conf from the node descriptions of the module `slurm_node_facts`."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING

from ansible.module_utils.slurm_host_lists import compress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SCHEMA = "primus.slurm_node/1"
UNKNOWN_SWITCH = "unplaced"
FABRIC = "fabric"
# Slurm prefers nodes of a low weight; the default is 1: slurm.conf(5), "Weight".
SPARE_WEIGHT = 1000
# The environment variables that select the GPUs of a job. Without a flag, Slurm sets those of all vendors. HIP applies both
# ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, one after the other: a job with GPUs 4 to 7 would see none. gres.conf(5) of Slurm 21.08
# and later, "Flags", and https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html.
GPU_FLAGS = {"amd": "amd_gpu_env", "nvidia": "nvidia_gpu_env"}


@dataclass(frozen=True)
class Node:
    """One node. `cgroup` is v1, v2, or empty if Slurm cannot use cgroups. `release` is that of Slurm, such as 22.05."""

    name: str
    address: str
    hostname: str
    cpus: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int
    stated_size: bool
    gpu_type: str
    gpu_count: int
    gpu_files: tuple[str, ...]
    switch: str
    rack: str
    cgroup: str
    cgroup_reason: str
    release: str
    gpu_vendor: str = ""
    container: bool = True  # missing in descriptions of earlier releases

    def line(self, *, spare: bool = False) -> str:
        """Return the line of the node in slurm.conf. Spare nodes have a high weight."""
        words = [f"NodeName={self.name}"]
        words += [f"NodeHostname={self.hostname}"] if self.hostname and self.hostname != self.name else []
        words += [f"NodeAddr={self.address}"] if self.address and self.address != self.name else []
        words += [f"CPUs={self.cpus}", f"Sockets={self.sockets}", f"CoresPerSocket={self.cores_per_socket}"]
        words += [f"ThreadsPerCore={self.threads_per_core}", f"RealMemory={self.memory_mib}"]
        words += [f"Gres=gpu:{self.gpu_type}:{self.gpu_count}"] if self.gpu_count else []
        words += [f"Weight={SPARE_WEIGHT}"] if spare else []
        return " ".join([*words, "State=UNKNOWN"])


def parse_node(text: str) -> Node:
    """Parse a node description.

    Raises:
        ValueError: It does not have this schema.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    # A description by an earlier release of the role, of a host that is down, is still valid.
    missing = sorted({one.name for one in fields(Node) if one.default is MISSING} - set(data))
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return Node(**{**{one.name: data[one.name] for one in fields(Node) if one.name in data}, "gpu_files": tuple(data["gpu_files"])})


@dataclass(frozen=True)
class Fragments:
    """The nodes in inventory order, and the reason for each member of the group that has no valid description."""

    nodes: tuple[Node, ...]
    left_out: Mapping[str, str]


def read_fragments(folder: Path, members: Sequence[str]) -> Fragments:
    """Read the description of every member."""
    nodes: list[Node] = []
    left_out: dict[str, str] = {}
    for name in members:
        path = folder / f"{name}.json"
        try:
            node = parse_node(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            left_out[name] = "it has no description yet"
        except (OSError, ValueError) as error:
            left_out[name] = f"{path} cannot be read: {error}"
        else:
            if node.name == name:
                nodes.append(node)
            else:
                left_out[name] = f"{path} describes {node.name}"
    return Fragments(tuple(nodes), left_out)


def gres_conf(nodes: Iterable[Node]) -> str:
    """Return gres.conf: the device files of the GPUs, with one line for all equal nodes.

    A missing device file is not listed, because slurmd would wait for it silently. The node then registers fewer GPUs than slurm.conf has
    for it, and slurmctld logs that and starts no jobs on it.
    """
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for node in nodes:
        if node.gpu_count and node.gpu_files:
            flags = f" Flags={GPU_FLAGS[node.gpu_vendor]}" if node.gpu_vendor in GPU_FLAGS else ""
            alike.setdefault((node.gpu_type, flags, node.gpu_files), []).append(node.name)
    return "".join(
        f"NodeName={compress(names)} Name=gpu Type={kind} File={compress(files)}{flags}\n"
        for (kind, flags, files), names in sorted(alike.items())
    )


def topology_conf(nodes: Sequence[Node]) -> str:
    """Return topology.conf from the stated switches, else the stated racks; empty if hosts.yaml states neither.

    Raises:
        ValueError: A switch is below two others, or below itself.
    """
    paths = _switch_paths(nodes)
    if not paths:
        return ""
    leaves: dict[str, list[str]] = {}
    parents: dict[str, str] = {}
    for name, path in paths.items():
        leaves.setdefault(path[-1], []).append(name)
        for parent, child in zip(["", *path], path):  # noqa: B905 (strict= came with Python 3.10, hosts have 3.9)
            if parents.setdefault(child, parent) != parent or path.count(child) > 1:
                raise ValueError(f"switch {child} is below {parents[child] or 'nothing'} and below {parent or 'nothing'}")
    children: dict[str, list[str]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    both = sorted(set(leaves) & set(children))
    if both:
        raise ValueError(f"switch {both[0]} has nodes and switches below it; Slurm allows only one of the two")
    roots = children.pop("")
    if len(roots) > 1:
        children[FABRIC] = roots
    lines = [f"SwitchName={switch} Nodes={compress(names)}\n" for switch, names in sorted(leaves.items())]
    lines += [f"SwitchName={switch} Switches={compress(below)}\n" for switch, below in sorted(children.items())]
    return "".join(lines)


def _switch_paths(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Return the switches of each node, from the top to the leaf."""
    if any(node.switch for node in nodes):
        return {node.name: [part for part in node.switch.split("/") if part] or [UNKNOWN_SWITCH] for node in nodes}
    if any(node.rack for node in nodes):
        return {node.name: [node.rack or UNKNOWN_SWITCH] for node in nodes}
    # Subnets say nothing about cables. A wrong topology delays large jobs and separates nodes that share a switch.
    return {}
