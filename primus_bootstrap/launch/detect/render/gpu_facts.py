"""Render /etc/primus/gpu.json (schema primus.gpu/1): the detected hardware and its profile. No time stamps: equal results, equal bytes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.detect.gpus import OK, model_facts
from primus_bootstrap.launch.detect.nics import near_ports

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.gpus import Gpu, GpuFindings
    from primus_bootstrap.launch.detect.nics import Fabric, Port
    from primus_bootstrap.launch.detect.profiles import Profile
    from primus_bootstrap.launch.detect.routes import Interface

SCHEMA = "primus.gpu/1"
FACTS = "etc/primus/gpu.json"


def facts_document(gpus: GpuFindings, fabric: Fabric, interface: Interface, profile: Profile) -> dict[str, Any]:
    """Return gpu.json as plain data."""
    return {
        "schema": SCHEMA,
        "verdict": gpus.verdict,
        "reason": gpus.reason,
        "vendor": gpus.vendor,
        "model": gpus.name,
        "models": list(gpus.models),
        "count": len(gpus.gpus),
        **_model_part(gpus),
        "devices": [_device(gpu, fabric) for gpu in gpus.gpus],
        "ignored": [asdict(item) for item in gpus.ignored],
        "problems": list(gpus.problems),
        "network": _network(fabric, interface),
        "profile": _profile(profile),
    }


def facts_text(document: dict[str, Any]) -> str:
    """Return the file's text."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _model_part(gpus: GpuFindings) -> dict[str, Any]:
    """Return the facts of the model; null if the model is not clear, or if models that share an id differ."""
    names = ("arch", "fp8", "mx", "unified_memory", "gcds_per_card")
    defaults = {"unified_memory": False, "gcds_per_card": 1}
    all_facts = [{**defaults, **model_facts(model)} for model in gpus.models]
    part: dict[str, Any] = {}
    for name in names:
        found = {facts[name] for facts in all_facts}
        part[name] = found.pop() if len(found) == 1 else None
    first = gpus.gpus[0] if gpus.verdict == OK else None
    dies = part["gcds_per_card"]
    part["memory_gib"] = first.memory_gib if first else None
    part["form"] = first.form if first else None
    part["virtual"] = any(gpu.virtual for gpu in gpus.gpus)
    part["cards"] = len(gpus.gpus) // dies if dies and len(gpus.gpus) % dies == 0 else None
    return part


def _device(gpu: Gpu, fabric: Fabric) -> dict[str, Any]:
    ports, nearness = near_ports(gpu, fabric.chosen)
    return {
        "address": gpu.address,
        "vendor": gpu.vendor,
        "device_id": gpu.device_id,
        "subsystem": gpu.subsystem,
        "model": gpu.name,
        "product": gpu.product,
        "memory_gib": gpu.memory_gib,
        "form": gpu.form,
        "virtual": gpu.virtual,
        "numa_node": gpu.numa_node,
        "nics": list(ports),
        "nics_by": nearness,
    }


def _network(fabric: Fabric, interface: Interface) -> dict[str, Any]:
    return {
        "kind": fabric.kind,
        "nic_family": fabric.family,
        "reason": fabric.reason,
        "hca_list": fabric.hca_list,
        "gid_index": fabric.gid_index,
        "socket_interface": asdict(interface),
        "ports": [_port(port) for port in fabric.ports],
    }


def _port(port: Port) -> dict[str, Any]:
    data = {name: value for name, value in asdict(port).items() if name not in ("path", "device", "number")}
    return {"name": port.name, **data, "netdevs": list(port.netdevs)}


def _profile(profile: Profile) -> dict[str, Any]:
    effective = profile.effective()
    entries = [(layer.name, entry) for layer in profile.layers for entry in layer.entries]
    return {
        "variables": [
            {**asdict(effective[name]), "overrides": _overridden(name, entries, effective[name].origin)} for name in sorted(effective)
        ],
        "unset": [asdict(item) for item in profile.unset],
    }


def _overridden(variable: str, entries: list[tuple[str, Any]], winner: str) -> list[dict[str, str]]:
    return [{"origin": entry.origin, "value": entry.value} for _, entry in entries if entry.variable == variable and entry.origin != winner]
