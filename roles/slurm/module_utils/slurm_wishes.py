# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""What a site states about Slurm, resolved to node names: host lists and partitions."""

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
# A range of more names than Slurm's own limit (MAX_RANGE in src/common/hostlist.h of Slurm 22.05 and 24.11) is a typing mistake.
MAX_RANGE = 65536


def split_list(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def expand(text: str) -> list[str]:
    """Return the names that `a,gpu[01-03,07]` means; Ansible's `gpu[01:03]` is understood as well.

    Raises:
        ValueError: brackets or bounds do not match, or the range is longer than Slurm allows.
    """
    names: list[str] = []
    for part in split_list(text):
        if "[" not in part and "]" not in part:
            names.append(part)
            continue
        found = _BRACKET.fullmatch(part)
        if not found:
            raise ValueError(f"{part}: one pair of brackets, with numbers such as [01-08], is what can be written")
        head, inner, tail = found.groups()
        names += [f"{head}{number}{tail}" for bounds in inner.split(",") for number in _numbers(part, bounds.strip())]
    return names


def _numbers(part: str, bounds: str) -> list[str]:
    found = _RANGE.fullmatch(bounds)
    if not found:
        raise ValueError(f"{part}: {bounds or 'nothing'} is no number and no range of numbers")
    first, last = found.group(1), found.group(2) or found.group(1)
    if not 0 <= int(last) - int(first) < MAX_RANGE:
        raise ValueError(f"{part}: the range {bounds} runs backwards or is longer than {MAX_RANGE}")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def compress(names: Iterable[str]) -> str:
    """Return names as Slurm writes them, `gpu[01-03,07],login1`: short, sorted, and the same for the same names."""
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
    """Let n9 and n10 share a bracket: a number without leading zeros is the same in every width up to its own."""
    merged: dict[tuple[str, int], list[int]] = {}
    for (head, width), numbers in sorted(numbered.items()):
        for number in numbers:
            merged.setdefault((head, 1 if len(str(number)) == width else width), []).append(number)
    return merged


def _runs(numbers: Sequence[int], width: int) -> list[str]:
    """Return sorted numbers as `01-03` and `07`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}" for first, last in runs]


@dataclass(frozen=True)
class Fleet:
    """The hosts that Slurm runs jobs on: group slurm_node, the inventory's groups, and those of them that are spare."""

    members: tuple[str, ...]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def working(self) -> list[str]:
        """Return the hosts that take jobs, in inventory order."""
        idle = set(self.spare)
        return [name for name in self.members if name not in idle]


@dataclass(frozen=True)
class Chosen:
    """The nodes that a partition names, in inventory order, and the names that mean nothing."""

    nodes: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def choose(wanted: Any, fleet: Fleet) -> Chosen:
    """Resolve what a partition states as `nodes`: `all`, a group, a host, a range, or several of them.

    A spare host takes no job of its own: it is in a partition only where it is named, by its name or by the group spare.

    Raises:
        ValueError: a range that cannot be read.
    """
    words = [str(word) for word in wanted] if isinstance(wanted, (list, tuple)) else [str(wanted)]
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
    return Chosen(tuple(name for name in fleet.members if name in picked), tuple(unknown))


def with_spare(partitions: Sequence[Mapping[str, Any]], fleet: Fleet) -> list[Mapping[str, Any]]:
    """Return the partitions, and one with the spare hosts where none of them holds a spare host or bears its name.

    It holds the hosts of the default partition as well, under the same rules: a job whose hosts became too few runs there, on spare
    ones beside others. A job of Slurm takes all its nodes from one partition.
    """
    idle = set(fleet.spare).intersection(fleet.members)
    held = any(idle.intersection(choose(one.get("nodes", "all"), fleet).nodes) for one in partitions)
    named = any(one.get("name") == SPARE for one in partitions)
    if not idle or held or named:
        return [*partitions]
    usual = next((one for one in partitions if one.get("default")), partitions[0] if partitions else {})
    nodes = choose(usual.get("nodes", "all"), fleet).nodes
    return [*partitions, {**usual, "name": SPARE, "default": False, "nodes": [*nodes, *sorted(idle)]}]
