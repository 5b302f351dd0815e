"""Read the declared variables of hosts.yaml from the roles' `meta/argument_specs.yml` and from `data/cluster_variables.yml`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DATA = Path(__file__).parents[1] / "data"
_UNITS = {
    "s": "seconds", "ms": "milliseconds", "min": "minutes", "h": "hours", "days": "days",
    "kib": "KiB", "mib": "MiB", "gib": "GiB", "gb": "GB", "mb": "MB", "bytes": "bytes",
    "percent": "%", "c": "°C", "w": "W", "mhz": "MHz", "mbit_per_s": "Mbit/s", "gbit_per_s": "Gbit/s",
}  # fmt: skip

# Units of which a number can be negative.
_SIGNED_UNITS = ("°C",)
# Endings of names that count something.
_COUNTS = ("port", "ports", "count", "cpus", "gpus", "inodes", "keep", "limit", "nodes", "replicas", "threads", "workers")
# What a description says if a negative number has a meaning.
_NEGATIVE = re.compile(r"(?<![\w-])-\d|\bnegative\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Option:
    """One variable, or one key of a nested variable, as its argument spec declares it."""

    name: str
    owner: str  # the role, or `cluster` for a variable of no role
    type: str  # Ansible's name of the type
    elements: str  # Ansible's name of the type of a list's items, or empty
    required: bool
    default: Any
    has_default: bool
    choices: tuple[Any, ...]
    no_log: bool
    description: tuple[str, ...]
    options: Mapping[str, Option]
    entry: str  # the entry point of the role that declares the variable
    raw: Mapping[str, Any] = field(repr=False)  # the entry of the argument spec

    @property
    def unit(self) -> str:
        """The unit that the ending of the name stands for, or an empty string."""
        for ending, unit in _UNITS.items():
            if self.name.endswith(f"_{ending}"):
                return unit
        return ""

    @property
    def not_negative(self) -> bool:
        """Whether its numbers cannot be negative: they have a unit or count something, and the description does not say otherwise."""
        is_number = "int" in (self.type, self.elements) or "float" in (self.type, self.elements)
        has_amount = (self.unit and self.unit not in _SIGNED_UNITS) or self.name.rpartition("_")[2] in _COUNTS
        return bool(is_number and has_amount) and not any(map(_NEGATIVE.search, self.description))


def read_option(declared_by: tuple[str, str], name: str, raw: Mapping[str, Any], default: Any, *, has_default: bool) -> Option:
    """Return one variable from its entry in an argument spec. `declared_by` is the owner and the entry point."""
    owner, entry = declared_by
    text = raw.get("description", ())
    return Option(
        name=name,
        owner=owner,
        type=raw.get("type", "str"),
        elements=raw.get("elements", ""),
        required=bool(raw.get("required", False)),
        default=default,
        has_default=has_default,
        choices=tuple(raw.get("choices", ())),
        no_log=bool(raw.get("no_log", False)),
        description=(text,) if isinstance(text, str) else tuple(text),
        options={
            key: read_option(declared_by, key, value, value.get("default"), has_default="default" in value)
            for key, value in raw.get("options", {}).items()
        },
        entry=entry,
        raw=raw,
    )


def _read(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) if path.is_file() else None


def _declared(owner: str, path: Path, defaults: Mapping[str, Any]) -> Iterable[Option]:
    specs = (_read(path) or {}).get("argument_specs", {})
    for entry, spec in specs.items():
        for name, raw in (spec.get("options") or {}).items():
            has_default = name in defaults or "default" in raw
            yield read_option((owner, entry), name, raw, defaults.get(name, raw.get("default")), has_default=has_default)


@cache
def load_options() -> Mapping[str, Option]:
    """Return every declared variable by name. If several entry points declare one, the first is used."""
    found: dict[str, Option] = {}
    for option in _declared("cluster", _DATA / "cluster_variables.yml", {}):
        found.setdefault(option.name, option)
    for role in sorted(content.roles_dir().iterdir()):
        defaults = _read(role / "defaults" / "main.yml") or {}
        for option in _declared(role.name, role / "meta" / "argument_specs.yml", defaults):
            found.setdefault(option.name, option)
    return found


@cache
def load_common_variables() -> Mapping[str, Mapping[str, Any]]:
    """Return the variables that people set most, with an example value each, by topic. All others are advanced."""
    topics: Mapping[str, Mapping[str, Any]] = _read(_DATA / "common_variables.yml")
    return topics
