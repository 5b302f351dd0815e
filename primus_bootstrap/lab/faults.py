"""Inject faults into nodes of the lab and remove them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.lab import containers as engine
from primus_bootstrap.lab.machine import inspect_machine
from primus_bootstrap.lab.reach import wait_for_nodes
from primus_bootstrap.lab.ssh_keys import pin_host_keys
from primus_bootstrap.lab.status import find_lab, require_container
from primus_bootstrap.lab.up import refuse_other_folder, repair_container

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.lab.lab_values import Lab
    from primus_bootstrap.lab.machine import Machine

# CPUs of a slowed host: few enough that a benchmark detects it despite shared CPUs, enough that sshd answers.
SLOW_PROCESSORS = 0.5


def apply_fault(fault: str, name: str, directory: Path, *, node: str) -> str:
    """Apply `kill`, `pause`, `partition` or `slow` to a node, or repair it (`heal`, `start`) and wait until SSH answers.

    Returns:
        A line that names the change.

    Raises:
        UsageError: The lab has no such node.
        LabError: The lab is not up, or was created from another folder.
    """
    machine = inspect_machine()
    refuse_other_folder(machine, name, directory, f"fault {fault} {node}")
    lab, found = find_lab(machine, name, directory)
    entry = require_container(found, lab, node)
    host = next(one for one in lab.nodes if one.name == node)
    act = _FAULTS.get(fault)
    if act is not None:
        return f"{node}: {act(machine, lab, entry)}"
    changes = repair_container(machine, lab, host, entry)
    # `node remove` deleted the pinned key of a node that left the cluster; the lab needs it again.
    changes += pin_host_keys(replace(lab, nodes=(host,)))
    wait_for_nodes(lab, [host])
    return f"{node}: {', '.join(changes) or 'nothing to repair'}"


def _kill(machine: Machine, _lab: Lab, entry: engine.Container) -> str:
    if entry.state not in ("running", "paused"):
        return "was not running"
    engine.kill(machine, entry.name)
    return "killed"


def _pause(machine: Machine, _lab: Lab, entry: engine.Container) -> str:
    if entry.state != "running":
        return "was not running"
    engine.pause(machine, entry.name)
    return "paused"


def _partition(machine: Machine, lab: Lab, entry: engine.Container) -> str:
    if lab.network not in entry.networks:
        return "was not connected"
    engine.disconnect(machine, lab.network, entry.name)
    return "disconnected from its network"


def _slow(machine: Machine, _lab: Lab, entry: engine.Container) -> str:
    if entry.state != "running":
        return "was not running"
    engine.limit_processors(machine, entry.name, SLOW_PROCESSORS)
    return f"limited to {SLOW_PROCESSORS:g} CPUs"


_FAULTS = {"kill": _kill, "pause": _pause, "partition": _partition, "slow": _slow}
