"""Build the environment of a host from layers of data: base, model, network, site. A later layer overrides an earlier one."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.launch.detect.gpus import GpuFindings
    from primus_bootstrap.launch.detect.nics import Fabric
    from primus_bootstrap.launch.detect.routes import Interface
    from primus_bootstrap.launch.detect.site import Site


@dataclass(frozen=True)
class Entry:
    """One variable of one layer. `origin` is the section of the data, like `model:MI300X`."""

    variable: str
    value: str
    origin: str
    reason: str
    source: str


@dataclass(frozen=True)
class Unset:
    """A variable that stays unset because its fact was not found on the host."""

    variable: str
    origin: str
    reason: str


@dataclass(frozen=True)
class Layer:
    """One layer and its variables."""

    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Profile:
    """All layers in order, and the unset variables."""

    layers: tuple[Layer, ...]
    unset: tuple[Unset, ...]

    def effective(self) -> dict[str, Entry]:
        """Return the effective entry of each variable: from the last layer that sets it."""
        return {entry.variable: entry for layer in self.layers for entry in layer.entries}


@dataclass(frozen=True)
class Facts:
    """The facts for `value_from` and `when` in the data. A value of None was not found; `reasons` explains why."""

    values: Mapping[str, str | None]
    reasons: Mapping[str, str]
    conditions: Mapping[str, Any]


@cache
def profile_data(name: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return one file of data/profiles: base, vendors, models, networks or nics."""
    text = pkgutil.get_data("primus_bootstrap.launch", f"data/profiles/{name}.yml")
    return dict(yaml.safe_load(text or b""))


def make_profile(gpus: GpuFindings, fabric: Fabric, interface: Interface, site: Site) -> Profile:
    """Build the layers of a host. If the model is not clear, its layer is empty."""
    facts = _facts(gpus, fabric, interface)
    sections = {
        "base": [("base", profile_data("base")["base"])],
        "model": [],
        "network": [("network", profile_data("networks")["all"]), (f"network:{fabric.kind}", profile_data("networks")[fabric.kind])],
    }
    if fabric.family:
        sections["network"].append((f"nic:{fabric.family}", profile_data("nics")[fabric.family]))
    if gpus.vendor:
        sections["base"].append((f"vendor:{gpus.vendor}", profile_data("vendors")[gpus.vendor]))
    if gpus.models:
        sections["model"].append((f"model:{gpus.name}", _shared_entries(gpus.models)))
    layers: list[Layer] = []
    unset: list[Unset] = []
    for name, parts in sections.items():
        resolved = [_resolve(raw, origin, facts) for origin, entries in parts for raw in entries if _applies(raw, facts)]
        layers.append(Layer(name, tuple(item for item in resolved if isinstance(item, Entry))))
        unset.extend(item for item in resolved if isinstance(item, Unset))
    layers.append(Layer("site", _site_entries(site)))
    return Profile(tuple(layers), tuple(unset))


def _shared_entries(models: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the entries that all of these models have in common."""
    lists = [profile_data("models")[model] for model in models]
    return [entry for entry in lists[0] if all(entry in other for other in lists[1:])]


def _facts(gpus: GpuFindings, fabric: Fabric, interface: Interface) -> Facts:
    gid = fabric.gid_index
    values = {
        "socket_interface": interface.name or None,
        "nccl_socket_interface": f"={interface.name}" if interface.name else None,
        "hca_list": fabric.hca_list or None,
        "gid_index": None if gid is None else str(gid),
    }
    gid_reasons = ", ".join(f"{port.name}: {'none' if port.gid_index is None else port.gid_index}" for port in fabric.chosen)
    reasons = {
        "socket_interface": interface.reason,
        "nccl_socket_interface": interface.reason,
        "hca_list": fabric.reason,
        "gid_index": f"the chosen ports share no RoCE v2 IPv4 GID index ({gid_reasons}); NCCL 2.21 and later finds the index of each port",
    }
    forms = {gpu.form for gpu in gpus.gpus}
    form = forms.pop() if len(forms) == 1 else ""
    return Facts(values, reasons, {"gpus": bool(gpus.gpus), "form": form})


def _applies(raw: Mapping[str, Any], facts: Facts) -> bool:
    return all(facts.conditions[name] == expected for name, expected in raw.get("when", {}).items())


def _resolve(raw: Mapping[str, Any], origin: str, facts: Facts) -> Entry | Unset:
    texts = [raw["reason"], *([f"Another source disagrees: {raw['conflict']}"] if "conflict" in raw else [])]
    variable, reason = str(raw["variable"]), " ".join(" ".join(texts).split())
    fact = raw.get("value_from")
    value = raw.get("value") if fact is None else facts.values[fact]
    if value is None:
        return Unset(variable, origin, facts.reasons[str(fact)])
    return Entry(variable, str(value), origin, reason, str(raw["source"]))


def _site_entries(site: Site) -> tuple[Entry, ...]:
    return tuple(Entry(item.name, item.value, "site", item.reason, "hosts.yaml: gpu_env_site") for item in site.variables)
