"""Collect the machine state of a run: operating system, CPUs, GPUs with drivers, RDMA ports, and the packages of the program's Python.

A value that cannot be read is None or has a reason, so that a comparison reports it.
"""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.launch.detect import gpus, nics, sysfs

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 120
_PACKAGES = """
import importlib.metadata as metadata, json, platform, sys
found = {item.metadata["Name"]: item.version for item in metadata.distributions() if item.metadata["Name"]}
print(json.dumps({"version": platform.python_version(), "executable": sys.executable, "packages": dict(sorted(found.items()))}))
"""


def describe(host: sysfs.Host, python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the state of this machine and of a Python on it as plain data.

    Args:
        host: The root of sys/ and proc/.
        python: The interpreter of the program; empty if it has none.
        environment: The program's environment, which determines the packages that its Python finds.
    """
    return {
        "os": _os_name(host),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(host),
        "cpus": os.cpu_count(),
        "memory_gib": _memory_gib(host),
        "gpus": _gpus(host),
        "gpu_drivers": _drivers(host),
        "rdma_ports": _ports(host),
        "python": _python(python, environment),
    }


def _os_name(host: sysfs.Host) -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', sysfs.read_text(host.path("etc", "os-release")) or "", re.MULTILINE)
    return match[1] if match else None


def _cpu_model(host: sysfs.Host) -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", sysfs.read_text(host.path("proc", "cpuinfo")) or "", re.MULTILINE)
    return match[1] if match else None


def _memory_gib(host: sysfs.Host) -> float | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", sysfs.read_text(host.path("proc", "meminfo")) or "", re.MULTILINE)
    return round(int(match[1]) / (1 << 20), 1) if match else None


def _gpus(host: sysfs.Host) -> dict[str, Any]:
    found = gpus.find_gpus(host)
    devices = {
        gpu.address: {
            "model": gpu.name or gpu.device_id,
            "vbios": sysfs.read_text(host.path("sys", "bus", "pci", "devices", gpu.address, "vbios_version")),
        }
        for gpu in found.gpus
    }
    return {"verdict": found.verdict, "model": found.name, "count": len(found.gpus), "devices": devices}


def _drivers(host: sysfs.Host) -> dict[str, str | None]:
    """Return the versions of drivers and ROCm. The amdgpu module of a kernel has no version of its own."""
    return {
        "amdgpu": sysfs.read_text(host.path("sys", "module", "amdgpu", "version")),
        "nvidia": sysfs.read_text(host.path("sys", "module", "nvidia", "version")),
        "rocm": sysfs.read_text(host.path("opt", "rocm", ".info", "version")),
        "mlx5_core": sysfs.read_text(host.path("sys", "module", "mlx5_core", "version")),
    }


def _ports(host: sysfs.Host) -> dict[str, dict[str, Any]]:
    """Return the RDMA ports with their firmware."""
    devices = host.path("sys", "class", "infiniband")
    return {
        port.name: {
            "kind": port.kind,
            "rate_gbit_per_s": port.rate_gbit_per_s,
            "state": port.state,
            "firmware": sysfs.read_text(devices / port.device / "fw_ver"),
        }
        for port in nics.read_ports(host)
    }


def _python(python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the version of an interpreter and the packages that it finds."""
    if not python:
        return {"problem": "the program's interpreter is unknown on this host"}
    try:
        done = run_command([python, "-c", _PACKAGES], env=environment, cwd="/", timeout_s=_TIMEOUT_S)
        if done.code == 0:
            return dict(json.loads(done.stdout))
        problem = f"exit code {done.code}; {done.last_words() or 'no output'}"
    except (OSError, ValueError) as error:
        problem = str(error)
    return {"problem": f"{Path(python).name} did not list its packages: {problem}"}
