# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Resolve host lists and the nodes of partitions to node names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SPARE = "spare"
_NUMBERED = re.compile(r"(.*?)(\d+)")
_BRACKET = re.compile(r"([^\[\],]*)\[([^\]]*)\]([^,\[\]]*)")
_RANGE = re.compile(r"(\d+)(?:[-:](\d+))?")
# The limit of Slurm itself: MAX_RANGE in src/common/hostlist.h of Slurm 22.05 and 24.11.
MAX_RANGE = 65536


def split_list(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def expand(text: str) -> list[str]:
    """Return the names of a host list such as `a,gpu[01-03,07]`. Ansible's form `gpu[01:03]` is accepted too.

    Raises:
        ValueError: The brackets or the bounds are invalid, or the range is longer than Slurm allows.
    """
    names: list[str] = []
    for part in split_list(text):
        if "[" not in part and "]" not in part:
            names.append(part)
            continue
        found = _BRACKET.fullmatch(part)
        if not found:
            raise ValueError(f"{part}: only one pair of brackets with numbers, such as [01-08], is allowed")
        head, inner, tail = found.groups()
        names += [f"{head}{number}{tail}" for bounds in inner.split(",") for number in _numbers(part, bounds.strip())]
    return names


def _numbers(part: str, bounds: str) -> list[str]:
    found = _RANGE.fullmatch(bounds)
    if not found:
        raise ValueError(f"{part}: {bounds or 'nothing'} is not a number or a range of numbers")
    first, last = found.group(1), found.group(2) or found.group(1)
    if not 0 <= int(last) - int(first) < MAX_RANGE:
        raise ValueError(f"{part}: the range {bounds} is descending or longer than {MAX_RANGE}")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def compress(names: Iterable[str]) -> str:
    """Return the shortest host list of the names, such as `gpu[01-03,07],login1`, sorted."""
    plain: list[str] = []
    numbered: dict[tuple[str, int], list[int]] = {}
    for name in set(names):
        found = _NUMBERED.fullmatch(name)
        if found:
            numbered.setdefault((found.group(1), len(found.group(2))), []).append(int(found.group(2)))
        else:
            plain.append(name)
    for (head, width), numbers in _merge_widths(numbered).items():
        runs = _runs(sorted(numbers), width)
        plain.append(f"{head}{runs[0]}" if len(numbers) == 1 else f"{head}[{','.join(runs)}]")
    return ",".join(sorted(plain))


def _merge_widths(numbered: Mapping[tuple[str, int], list[int]]) -> dict[tuple[str, int], list[int]]:
    """Put n9 and n10 into one range: the width matters only for numbers with leading zeros."""
    merged: dict[tuple[str, int], list[int]] = {}
    for (head, width), numbers in sorted(numbered.items()):
        for number in numbers:
            merged.setdefault((head, 1 if len(str(number)) == width else width), []).append(number)
    return merged


def _runs(numbers: Sequence[int], width: int) -> list[str]:
    """Return sorted numbers as ranges such as `01-03` and `07`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}" for first, last in runs]


@dataclass(frozen=True)
class Fleet:
    """The nodes of the cluster (group slurm_node), the groups of the inventory, and the spare nodes."""

    members: tuple[str, ...]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def working(self) -> list[str]:
        """Return the nodes that are not spare, in inventory order."""
        idle = set(self.spare)
        return [name for name in self.members if name not in idle]


@dataclass(frozen=True)
class NodeSelection:
    """The nodes of a partition in inventory order, and the unknown names."""

    nodes: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def select_nodes(names: Any, fleet: Fleet) -> NodeSelection:
    """Resolve the `nodes` of a partition: `all`, a group, a host, a range, or a list of these.

    A spare host is part of a partition only if its own name or the group spare is given.

    Raises:
        ValueError: A range is invalid.
    """
    words = [str(word) for word in names] if isinstance(names, (list, tuple)) else [str(names)]
    members, idle = set(fleet.members), set(fleet.spare)
    picked: set[str] = set()
    unknown: list[str] = []
    for word in (part for text in words for part in split_list(text)):
        if word == "all":
            picked.update(fleet.working())
        elif word in fleet.groups and word not in members:
            hosts = members.intersection(fleet.groups[word])
            picked.update(hosts if word == SPARE else hosts - idle)
        else:
            hosts = set(expand(word))
            picked.update(hosts & members)
            unknown += [name for name in expand(word) if name not in members]
    return NodeSelection(tuple(name for name in fleet.members if name in picked), tuple(unknown))


def add_spare_partition(partitions: Sequence[Mapping[str, Any]], fleet: Fleet) -> list[Mapping[str, Any]]:
    """Return the partitions, plus a partition `spare` if no partition contains a spare host or has this name.

    It also has the hosts and settings of the default partition: a job takes all its nodes from one partition, and a job that lost hosts
    needs the remaining hosts together with spare ones.
    """
    idle = set(fleet.spare).intersection(fleet.members)
    used = any(idle.intersection(select_nodes(one.get("nodes", "all"), fleet).nodes) for one in partitions)
    named = any(one.get("name") == SPARE for one in partitions)
    if not idle or used or named:
        return [*partitions]
    default = next((one for one in partitions if one.get("default")), partitions[0] if partitions else {})
    nodes = select_nodes(default.get("nodes", "all"), fleet).nodes
    return [*partitions, {**default, "name": SPARE, "default": False, "nodes": [*nodes, *sorted(idle)]}]
