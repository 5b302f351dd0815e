"""The topology of a fabric: racks, switches and hosts, from an inventory or from Slurm's topology.conf."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.detect.nics import natural
from primus_bootstrap.launch.run_topology import expand_nodes
from primus_bootstrap.launch.topology.tree import UNKNOWN, Item

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# topology.conf of a node: https://slurm.schedmd.com/topology.conf.html; the second is the one of configless Slurm.
SLURM_FILES = ("etc/slurm/topology.conf", "run/slurm/conf/topology.conf")
_LISTS = ("switches", "nodes")
_TIMEOUT_S = 300
_OUTPUT_BYTES = 1 << 30  # ansible-inventory prints all variables of every host
_GIVE = "give hosts.yaml, the JSON of `ansible-inventory --list`, or Slurm's topology.conf"


def read_fabric(path: Path) -> Item:
    """Return the fabric that a file describes: topology.conf, the JSON of ansible-inventory, or else an inventory.

    Raises:
        UsageError: The file does not exist, cannot be read, or describes no host.
        PlanError: ansible-inventory is not installed.
    """
    if not path.exists():
        raise UsageError(f"--fabric {path}: file not found", fix=_GIVE)
    if path.suffix == ".conf":
        return slurm_fabric(_read(path), str(path))
    data = _json(path) if path.suffix == ".json" else _listed(path)
    hosts = data.get("_meta", {}).get("hostvars", {}) if isinstance(data, dict) else {}
    if not hosts:
        raise UsageError(f"--fabric {path}: contains no host", fix=_GIVE)
    return inventory_fabric(hosts, str(path))


def local_fabric(root: Path) -> Item | None:
    """Return the fabric that Slurm's configuration on this host describes; None if there is none."""
    found = next((root / name for name in SLURM_FILES if (root / name).is_file()), None)
    return slurm_fabric(_read(found), str(found)) if found else None


def inventory_fabric(hosts: Mapping[str, Mapping[str, Any]], origin: str) -> Item:
    """Return racks, their switches (slurm_switch) and hosts from the variables of an inventory's hosts."""
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for host in sorted(hosts, key=natural):
        places[_variable(hosts[host], "rack")][_variable(hosts[host], "slurm_switch")].append(host)
    racks = []
    for rack in sorted(places, key=_order):
        switches = places[rack]
        parts = [_switch(name, switches[name], hosts) for name in sorted(switches, key=_order)]
        children = parts[0].children if list(switches) == [UNKNOWN] else tuple(parts)
        racks.append(Item("rack", rack, _count(sum(map(len, switches.values()))), children))
    return Item("fabric", "", f"{_count(len(hosts))}, from {origin}", tuple(racks))


def _order(name: str) -> tuple[bool, Any]:
    return name == UNKNOWN, natural(name)


def _variable(values: Mapping[str, Any], name: str) -> str:
    """Return a variable; a missing one, and a template that ansible-inventory does not resolve, are unknown."""
    value = values.get(name)
    return str(value) if isinstance(value, (str, int)) and str(value) and "{{" not in str(value) else UNKNOWN


def _switch(name: str, members: Iterable[str], hosts: Mapping[str, Mapping[str, Any]]) -> Item:
    children = tuple(Item("host", host, _gpus(hosts[host])) for host in members)
    return Item("switch", name, _count(len(children)), children)


def _gpus(values: Mapping[str, Any]) -> str:
    model, count = _variable(values, "gpu_env_model"), _variable(values, "gpu_env_count")
    words = [word for word in (f"{count} x" if count != UNKNOWN else "", model if model not in (UNKNOWN, "auto") else "") if word]
    return " ".join([*words, "GPU"]) if len(words) == 1 and words[0].endswith("x") else " ".join(words)


def _count(number: int) -> str:
    return f"{number} host{'' if number == 1 else 's'}"


def slurm_fabric(text: str, origin: str) -> Item:
    """Return the switches and nodes of a topology.conf (plug-in topology/tree).

    Raises:
        UsageError: It names no switch, a switch without a line of its own, or switches in a loop, or a list of names is wrong.
    """
    switches: dict[str, dict[str, tuple[str, ...]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.partition("=") for word in line.partition("#")[0].split()]
        fields = {name.lower(): value for name, _, value in words}
        if fields.get("switchname"):
            switches[fields["switchname"]] = {name: _names(value, f"{origin}:{number}") for name, value in fields.items() if name in _LISTS}
    if not switches:
        raise UsageError(f"{origin}: no line SwitchName=…", fix=_GIVE)
    _check_switches(switches, origin)
    below = {name for lists in switches.values() for name in lists.get("switches", ())}
    roots = tuple(_slurm_switch(name, switches) for name in sorted(set(switches) - below, key=natural))
    return Item("fabric", "", f"{_count(sum(map(_hosts, roots)))}, from {origin}", roots)


def _check_switches(switches: Mapping[str, Mapping[str, tuple[str, ...]]], origin: str) -> None:
    left = {name: set(lists.get("switches", ())) for name, lists in switches.items()}
    for name, below in left.items():
        if below - set(switches):
            missing = min(below - set(switches), key=natural)
            fix = f"add the line, or remove {missing} from the line of {name}"
            raise UsageError(f"{origin}: switch {missing} below {name} has no line SwitchName={missing}", fix=fix)
    while left:  # remove the lowest switches again and again; only a loop has none
        lowest = {name for name, below in left.items() if not below & set(left)}
        if not lowest:
            loop = " > ".join(_loop(left))
            raise UsageError(f"{origin}: these switches form a loop: {loop}", fix="remove one of them from the Switches= of another")
        left = {name: below for name, below in left.items() if name not in lowest}


def _loop(below: Mapping[str, set[str]]) -> list[str]:
    """Return a loop, of switches that all have one of them below; the last is the first again."""
    path = [min(below, key=natural)]
    while True:
        lower = min(below[path[-1]] & set(below), key=natural)
        if lower in path:
            return [*path[path.index(lower) :], lower]
        path.append(lower)


def _slurm_switch(name: str, switches: Mapping[str, Mapping[str, tuple[str, ...]]]) -> Item:
    lists = switches[name]
    children = [_slurm_switch(child, switches) for child in lists.get("switches", ())]
    children += [Item("host", host) for host in sorted(lists.get("nodes", ()), key=natural)]
    item = Item("switch", name, "", tuple(children))
    return Item("switch", name, _count(_hosts(item)), item.children)


def _hosts(item: Item) -> int:
    return 1 if item.kind == "host" else sum(map(_hosts, item.children))


def _names(text: str, where: str) -> tuple[str, ...]:
    try:
        return expand_nodes(text) if text else ()
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", fix=error.fix) from error


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", fix=_GIVE) from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", fix=_GIVE) from error


def _listed(path: Path) -> Any:
    """Return the output of `ansible-inventory --list`, which merges group and host variables as Ansible does."""
    beside = str(Path(sys.executable).parent)
    program = shutil.which("ansible-inventory", path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
    if program is None:
        fix = f"run this where primus-bootstrap is installed, or pass the output of `ansible-inventory -i {path} --list` as a .json file"
        raise PlanError("ansible-inventory, which reads inventories, is not installed", fix=fix)
    environment = {**os.environ, "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1"}  # without it, a wrong file is an empty inventory
    done = run_command([program, "-i", str(path), "--list"], timeout_s=_TIMEOUT_S, env=environment, max_output_bytes=_OUTPUT_BYTES)
    if done.code:
        raise UsageError(f"--fabric {path}: ansible-inventory failed: {done.last_words()}", fix=f"ansible-inventory -i {path} --list")
    return json.loads(done.stdout)
