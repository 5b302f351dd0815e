"""The settings that all backends share: those of the native trainer and those of data/backends/common.yml."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.launch.programs.train_settings import Known, known_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@cache
def _added() -> Mapping[str, Known]:
    data = yaml.safe_load(pkgutil.get_data("primus_bootstrap.launch", "data/backends/common.yml") or b"")
    return {
        name: Known(facts["kind"], facts["default"], facts["meaning"], tuple(facts.get("choices", ())), facts.get("limits", {}))
        for name, facts in data.items()
    }


def common_settings(workloads: Path) -> dict[str, Known]:
    """Return every common setting by name."""
    return {**known_settings(workloads), **_added()}


def typed(known: Known, value: Any) -> Any:
    """Return a value that fits in the setting's type: arguments are texts, and YAML reads 3e-4 as one."""
    if known.kind == "bool":
        return str(value).lower() == "true"
    if known.kind == "tuple":
        return tuple(item for item in value.split(",") if item) if isinstance(value, str) else tuple(value)
    convert = {"int": int, "float": float}.get(known.kind, str)
    return convert(value)
