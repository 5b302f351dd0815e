#!/usr/bin/python
"""Say what this host offers to Slurm: the Ansible module `slurm_node_facts`, which changes nothing.

Its answer, `node`, is the host's fragment: each controller keeps one file a node and makes the configuration from them.
The same host gives the same bytes: no times, no loads.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_nodes import SCHEMA
from ansible.module_utils.slurm_wishes import expand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], str]

CALL_S = 30.0
# Where the distributions keep Slurm's plug-ins: Debian and Ubuntu, RHEL.
PLUGINS = ("usr/lib/*/slurm-wlm", "usr/lib/*/slurm", "usr/lib64/slurm")
# What task/cgroup and proctrack/cgroup need of each version: https://slurm.schedmd.com/cgroups.html
V1_HIERARCHIES = ("freezer", "cpuset", "memory", "devices")
V2_CONTROLLERS = ("cpuset", "cpu", "memory")
PCI_VENDORS = {"amd": "0x1002", "nvidia": "0x10de"}


class MissingError(Exception):
    """Something that must be known is not; the text says what, and how to mend it."""


def run_program(argv: Sequence[str]) -> str:
    """Return what a program prints; nothing where it is absent, fails or hangs."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=CALL_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


class Machine:
    """The host; `root` is `/` except in tests."""

    def __init__(self, *, root: str = "/", run: Runner = run_program) -> None:
        """Keep where to look and how to call programs."""
        self.root = Path(root)
        self.run = run

    def at(self, path: str) -> Path:
        """Return a path of the host below the root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return a file's text; empty where it cannot be read."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


def look_at_size(machine: Machine, *, cpus: int, memory_mib: int, kept_back_mib: int) -> dict[str, Any]:
    """Return processors and memory as slurmd itself finds them, or as stated."""
    if bool(cpus) != bool(memory_mib):
        raise MissingError("a stated size needs both. Fix: state processors and memory, or neither")
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
    if memory <= kept_back_mib:
        raise MissingError(f"the host has {memory} MiB of memory and {kept_back_mib} MiB are kept back. Fix: keep less back")
    return {**size, "memory_mib": memory - kept_back_mib, "stated_size": False}


def _size_of_kernel(machine: Machine) -> dict[str, int]:
    """Return what /proc/cpuinfo says, for a host that has no slurmd yet."""
    blocks = [block for block in machine.read("/proc/cpuinfo").split("\n\n") if block.startswith("processor")]
    if not blocks:
        raise MissingError("neither `slurmd -C` nor /proc/cpuinfo says how many processors there are. Fix: run `slurmd -C` on the host")
    pairs = [dict(re.findall(r"^(physical id|core id)\s*:\s*(\d+)", block, re.MULTILINE)) for block in blocks]
    cores = {(pair.get("physical id", "0"), pair.get("core id", str(position))) for position, pair in enumerate(pairs)}
    sockets = len({socket for socket, _ in cores})
    even = len(cores) % sockets == 0 and len(blocks) % len(cores) == 0
    shape = (sockets, len(cores) // sockets, len(blocks) // len(cores)) if even else (1, len(blocks), 1)
    return {"cpus": len(blocks), "sockets": shape[0], "cores_per_socket": shape[1], "threads_per_core": shape[2]}


def _memory_of_kernel(machine: Machine) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", machine.read("/proc/meminfo"), re.MULTILINE)
    if not found:
        raise MissingError("neither `slurmd -C` nor /proc/meminfo says how much memory there is. Fix: run `slurmd -C` on the host")
    return int(found.group(1)) // 1024


def look_at_gpus(machine: Machine, *, model: str, count: int | None, devices: str) -> dict[str, Any]:
    """Return GPU type, number and device files: as stated, else as role gpu_env found them."""
    try:
        detected = json.loads(machine.read("/etc/primus/gpu.json") or "{}")
    except ValueError:
        detected = {}
    kind = model if model and model != "auto" else str(detected.get("model") or "")
    number = int(detected.get("count") or 0) if count is None else count
    if not number:
        return {"gpu_type": "", "gpu_vendor": "", "gpu_count": 0, "gpu_files": []}
    if not kind:
        raise MissingError(f"there are {number} GPUs and their model is not known. Fix: set gpu_env_model for this host")
    kind = kind.lower().replace("/", "-")
    vendor = (str(detected.get("vendor") or "") if detected.get("count") else "") or ("amd" if kind.startswith("mi") else "")
    paths = expand(devices) if devices else _vendor_files(machine, vendor or "nvidia")
    files = [path for path in paths if machine.at(path).exists()][:number]
    vendor = vendor or ("nvidia" if files and not devices else "")
    return {"gpu_type": kind, "gpu_vendor": vendor, "gpu_count": number, "gpu_files": files}


def _vendor_files(machine: Machine, vendor: str) -> list[str]:
    """Return the device files of a vendor's driver, in the order of their numbers, which is the order of the PCI bus."""
    folder, pattern = ("/dev/dri", r"renderD(\d+)") if vendor == "amd" else ("/dev", r"nvidia(\d+)")
    try:
        names = [path.name for path in machine.at(folder).iterdir()]
    except OSError:
        return []
    found = [(int(match.group(1)), name) for name in names if (match := re.fullmatch(pattern, name))]
    own = [name for _, name in sorted(found) if vendor != "amd" or _of_amd(machine, name)]
    return [f"{folder}/{name}" for name in own]


def _of_amd(machine: Machine, name: str) -> bool:
    """Tell whether a render node is AMD's; one whose vendor sysfs does not tell counts."""
    return machine.read(f"/sys/class/drm/{name}/device/vendor") in ("", PCI_VENDORS["amd"])


def look_at_cgroups(machine: Machine) -> dict[str, str]:
    """Say which control groups slurmd can use here, and why none where there is none."""
    top = machine.at("/sys/fs/cgroup")
    controllers = machine.read("/sys/fs/cgroup/cgroup.controllers").split()
    version = "v2" if (top / "cgroup.controllers").exists() else "v1"
    if version == "v2":
        lacking = [name for name in V2_CONTROLLERS if name not in controllers]
        closed = [] if os.access(top / "cgroup.subtree_control", os.W_OK) else ["/sys/fs/cgroup"]
    else:
        lacking = [name for name in V1_HIERARCHIES if not (top / name / "cgroup.procs").exists()]
        closed = [f"/sys/fs/cgroup/{name}" for name in V1_HIERARCHIES if name not in lacking and not os.access(top / name, os.W_OK)]
    plugin = any(next(machine.root.glob(f"{folder}/cgroup_{version}.so"), None) for folder in PLUGINS)
    reason = (
        f"cgroup {version} has no {', '.join(lacking)} here"
        if lacking
        else f"{', '.join(closed)} cannot be written here"
        if closed
        else ""
        if plugin
        else f"the installed Slurm has no plug-in for cgroup {version}"
    )
    return {"cgroup": "" if reason else version, "cgroup_reason": reason}


def look_at_container(machine: Machine) -> dict[str, bool]:
    """Say whether the host is a container, as systemd has noted at its start: systemd(1), /run/systemd/container."""
    return {"container": any(machine.at(path).exists() for path in ("/run/systemd/container", "/run/.containerenv", "/.dockerenv"))}


def release_of(machine: Machine) -> str:
    """Return Slurm's release, such as 22.05; empty where it is not installed."""
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
            "memory_kept_back_mib": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    machine = Machine()
    try:
        size = look_at_size(machine, cpus=given["cpus"], memory_mib=given["memory_mib"], kept_back_mib=given["memory_kept_back_mib"])
        gpus = look_at_gpus(machine, model=given["gpu_model"], count=given["gpu_count"], devices=given["gpu_devices"])
    except (MissingError, ValueError) as error:
        module.fail_json(msg=f"{given['name']}: {error}")
    place = {name: given[name] for name in ("name", "address", "switch", "rack")}
    hostname = given["hostname"] or socket.gethostname().partition(".")[0]
    node = {
        "schema": SCHEMA,
        **place,
        "hostname": hostname,
        **size,
        **gpus,
        **look_at_cgroups(machine),
        **look_at_container(machine),
        "release": release_of(machine),
    }
    module.exit_json(changed=False, node=node)


if __name__ == "__main__":
    main()
