#!/usr/bin/python
"""Ansible module `slurm_node_facts`: describe this host for Slurm. It changes nothing.

No collection has a module for it. Its result `node` is the description of the node, from which the controllers generate the
configuration. The same host always gives the same description: it has no times and no load.
"""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.slurm_host_lists import expand
from ansible.module_utils.slurm_nodes import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], str]

CALL_S = 30.0
# Folders of Slurm's plug-ins on Debian, Ubuntu and RHEL.
PLUGINS = ("usr/lib/*/slurm-wlm", "usr/lib/*/slurm", "usr/lib64/slurm")
# Requirements of task/cgroup and proctrack/cgroup by cgroup version: https://slurm.schedmd.com/cgroups.html
V1_HIERARCHIES = ("freezer", "cpuset", "memory", "devices")
V2_CONTROLLERS = ("cpuset", "cpu", "memory")
PCI_VENDORS = {"amd": "0x1002", "nvidia": "0x10de"}


class MissingError(Exception):
    """A required value cannot be read; the text has the fix."""


def run_program(argv: Sequence[str]) -> str:
    """Return the output of a program; empty if it is missing, fails or times out."""
    try:
        done = run_command(argv, timeout_s=CALL_S)
    except OSError:
        return ""
    return done.stdout if done.code == 0 else ""


class Machine:
    """The host; `root` is `/` except in tests."""

    def __init__(self, *, root: str = "/", run: Runner = run_program) -> None:
        """Store the root folder and how to run programs."""
        self.root = Path(root)
        self.run = run

    def at(self, path: str) -> Path:
        """Return a path below the root folder."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return the text of a file; empty if it cannot be read."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


def read_size(machine: Machine, *, cpus: int, memory_mib: int, reserved_mib: int) -> dict[str, Any]:
    """Return CPUs and memory as set, else as slurmd detects them."""
    if bool(cpus) != bool(memory_mib):
        raise MissingError("only one of slurm_node_cpus and slurm_node_memory_mib is set. Fix: set both or none")
    if cpus:
        shape = {"sockets": 1, "cores_per_socket": cpus, "threads_per_core": 1}
        return {"cpus": cpus, **shape, "memory_mib": memory_mib, "stated_size": True}
    shown = dict(word.partition("=")[::2] for word in machine.run(["slurmd", "-C"]).split() if "=" in word)
    if "CPUs" in shown and "RealMemory" in shown:
        names = {"cpus": "CPUs", "sockets": "SocketsPerBoard", "cores_per_socket": "CoresPerSocket", "threads_per_core": "ThreadsPerCore"}
        size = {name: int(shown[word]) for name, word in names.items()}
        size["sockets"] *= int(shown.get("Boards", "1"))
        memory = int(shown["RealMemory"])
    else:
        size, memory = _size_of_kernel(machine), _memory_of_kernel(machine)
    memory -= _huge_pages(machine)
    if memory <= reserved_mib:
        what = f"the host has {memory} MiB of memory besides huge pages, and slurm_node_reserved_memory_mib is {reserved_mib}"
        raise MissingError(f"{what}. Fix: lower slurm_node_reserved_memory_mib")
    return {**size, "memory_mib": memory - reserved_mib, "stated_size": False}


def _size_of_kernel(machine: Machine) -> dict[str, int]:
    """Return the CPUs of /proc/cpuinfo, for a host without slurmd."""
    blocks = [block for block in machine.read("/proc/cpuinfo").split("\n\n") if block.startswith("processor")]
    if not blocks:
        raise MissingError("neither `slurmd -C` nor /proc/cpuinfo has the number of CPUs. Fix: run `slurmd -C` on the host")
    pairs = [dict(re.findall(r"^(physical id|core id)\s*:\s*(\d+)", block, re.MULTILINE)) for block in blocks]
    cores = {(pair.get("physical id", "0"), pair.get("core id", str(position))) for position, pair in enumerate(pairs)}
    sockets = len({socket for socket, _ in cores})
    even = len(cores) % sockets == 0 and len(blocks) % len(cores) == 0
    shape = (sockets, len(cores) // sockets, len(blocks) // len(cores)) if even else (1, len(blocks), 1)
    return {"cpus": len(blocks), "sockets": shape[0], "cores_per_socket": shape[1], "threads_per_core": shape[2]}


def _memory_of_kernel(machine: Machine) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", machine.read("/proc/meminfo"), re.MULTILINE)
    if not found:
        raise MissingError("neither `slurmd -C` nor /proc/meminfo has the size of the memory. Fix: run `slurmd -C` on the host")
    return int(found.group(1)) // 1024


def _huge_pages(machine: Machine) -> int:
    """Return the memory in MiB that is reserved for huge pages: MemTotal includes it, and `--mem` of a job cannot use it."""
    found = re.search(r"^Hugetlb:\s+(\d+) kB", machine.read("/proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) // 1024 if found else 0


def read_gpus(machine: Machine, *, model: str, count: int | None, devices: str) -> dict[str, Any]:
    """Return type, number and device files of the GPUs: as set, else as the role gpu_env detected them."""
    try:
        detected = json.loads(machine.read("/etc/primus/gpu.json") or "{}")
    except ValueError:
        detected = {}
    kind = model if model and model != "auto" else str(detected.get("model") or "")
    number = int(detected.get("count") or 0) if count is None else count
    if not number:
        return {"gpu_type": "", "gpu_vendor": "", "gpu_count": 0, "gpu_files": []}
    if not kind:
        raise MissingError(f"the model of the {number} GPUs is unknown. Fix: set gpu_env_model for this host")
    kind = kind.lower().replace("/", "-")
    vendor = (str(detected.get("vendor") or "") if detected.get("count") else "") or ("amd" if kind.startswith("mi") else "")
    paths = expand(devices) if devices else _vendor_files(machine, vendor or "nvidia")
    files = [path for path in paths if machine.at(path).exists()][:number]
    vendor = vendor or ("nvidia" if files and not devices else "")
    return {"gpu_type": kind, "gpu_vendor": vendor, "gpu_count": number, "gpu_files": files}


def _vendor_files(machine: Machine, vendor: str) -> list[str]:
    """Return the device files of a vendor's driver by number, which is the order of the PCI bus."""
    folder, pattern = ("/dev/dri", r"renderD(\d+)") if vendor == "amd" else ("/dev", r"nvidia(\d+)")
    try:
        names = [path.name for path in machine.at(folder).iterdir()]
    except OSError:
        return []
    found = [(int(match.group(1)), name) for name in names if (match := re.fullmatch(pattern, name))]
    matching = [name for _, name in sorted(found) if vendor != "amd" or _is_amd(machine, name)]
    return [f"{folder}/{name}" for name in matching]


def _is_amd(machine: Machine, name: str) -> bool:
    """Return whether a render node belongs to an AMD GPU, or its vendor is unknown."""
    return machine.read(f"/sys/class/drm/{name}/device/vendor") in ("", PCI_VENDORS["amd"])


def read_cgroups(machine: Machine) -> dict[str, str]:
    """Return the cgroup version that slurmd can use, or the reason why it can use none."""
    top = machine.at("/sys/fs/cgroup")
    controllers = machine.read("/sys/fs/cgroup/cgroup.controllers").split()
    version = "v2" if (top / "cgroup.controllers").exists() else "v1"
    if version == "v2":
        lacking = [name for name in V2_CONTROLLERS if name not in controllers]
        read_only = [] if os.access(top / "cgroup.subtree_control", os.W_OK) else ["/sys/fs/cgroup"]
    else:
        lacking = [name for name in V1_HIERARCHIES if not (top / name / "cgroup.procs").exists()]
        read_only = [f"/sys/fs/cgroup/{name}" for name in V1_HIERARCHIES if name not in lacking and not os.access(top / name, os.W_OK)]
    plugin = any(next(machine.root.glob(f"{folder}/cgroup_{version}.so"), None) for folder in PLUGINS)
    reason = (
        f"cgroup {version} has no {', '.join(lacking)}"
        if lacking
        else f"{', '.join(read_only)} is read-only"
        if read_only
        else ""
        if plugin
        else f"the installed Slurm has no plug-in for cgroup {version}"
    )
    return {"cgroup": "" if reason else version, "cgroup_reason": reason}


def read_container(machine: Machine) -> dict[str, bool]:
    """Return whether the host is a container: systemd(1), /run/systemd/container."""
    return {"container": any(machine.at(path).exists() for path in ("/run/systemd/container", "/run/.containerenv", "/.dockerenv"))}


def read_release(machine: Machine) -> str:
    """Return the release of Slurm, such as 22.05; empty if it is not installed."""
    found = re.search(r"(\d+\.\d+)", machine.run(["slurmd", "-V"]))
    return found.group(1) if found else ""


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        {
            "name": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "hostname": {"type": "str", "default": ""},
            "gpu_model": {"type": "str", "default": ""},
            "gpu_count": {"type": "int"},
            "gpu_devices": {"type": "str", "default": ""},
            "switch": {"type": "str", "default": ""},
            "rack": {"type": "str", "default": ""},
            "cpus": {"type": "int", "default": 0},
            "memory_mib": {"type": "int", "default": 0},
            "reserved_memory_mib": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    machine = Machine()
    try:
        size = read_size(machine, cpus=given["cpus"], memory_mib=given["memory_mib"], reserved_mib=given["reserved_memory_mib"])
        gpus = read_gpus(machine, model=given["gpu_model"], count=given["gpu_count"], devices=given["gpu_devices"])
    except (MissingError, ValueError) as error:
        module.fail_json(msg=f"{given['name']}: {error}")
    location = {name: given[name] for name in ("name", "address", "switch", "rack")}
    hostname = given["hostname"] or socket.gethostname().partition(".")[0]
    node = {
        "schema": SCHEMA,
        **location,
        "hostname": hostname,
        **size,
        **gpus,
        **read_cgroups(machine),
        **read_container(machine),
        "release": read_release(machine),
    }
    module.exit_json(changed=False, node=node)


if __name__ == "__main__":
    main()
