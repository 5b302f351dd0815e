"""Break a node of the lab on purpose, and mend it: what tests and rehearsals use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.lab import containers as engine
from primus_bootstrap.lab.machine import look_at_machine
from primus_bootstrap.lab.reach import wait_for_nodes
from primus_bootstrap.lab.ssh_keys import pin_host_keys
from primus_bootstrap.lab.status import find_lab, require_container
from primus_bootstrap.lab.up import heal_container

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.lab.lab_values import Lab
    from primus_bootstrap.lab.machine import Machine

# What a slowed host has left: little enough that a benchmark shows it beside what shared processors do, enough to answer.
SLOW_PROCESSORS = 0.5


def inflict(fault: str, name: str, directory: Path, *, node: str) -> str:
    """Kill, pause, partition or slow a node, or heal it (which `start` means as well); return what was done in words.

    What brings a node back waits until SSH answers.

    Raises:
        LabError: There is no such node.
    """
    machine = look_at_machine()
    lab, found = find_lab(machine, name, directory)
    entry = require_container(found, lab, node)
    host = next(one for one in lab.nodes if one.name == node)
    act = _BREAKS.get(fault)
    if act is not None:
        return f"{node}: {act(machine, lab, entry)}"
    done = heal_container(machine, lab, host, entry)
    # A node that was removed from its cluster has no pin there any more; it is the lab's own all the same.
    done += pin_host_keys(replace(lab, nodes=(host,)))
    wait_for_nodes(lab, [host])
    return f"{node}: {', '.join(done) or 'nothing to mend'}"


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
        return "was off its network"
    engine.disconnect(machine, lab.network, entry.name)
    return "off its network"


def _slow(machine: Machine, _lab: Lab, entry: engine.Container) -> str:
    if entry.state != "running":
        return "was not running"
    engine.limit_processors(machine, entry.name, SLOW_PROCESSORS)
    return f"has {SLOW_PROCESSORS:g} of a processor"


_BREAKS = {"kill": _kill, "pause": _pause, "partition": _partition, "slow": _slow}
