"""Write YAML keys and values on one line, quoted where YAML would otherwise read another type."""

from __future__ import annotations

from typing import Any

import yaml


def key_text(name: str) -> str:
    """Return a key."""
    return yaml.safe_dump({name: None}, allow_unicode=True, width=10**6).rpartition(": null")[0]


def flow_text(value: Any) -> str:
    """Return a value on one line."""
    text = yaml.safe_dump({"k": value}, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.strip()[len("{k: ") : -1]
