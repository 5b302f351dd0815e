"""The file with the settings that a backend accepts: launch/data/backends/<name>-<version>.json."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def text(keys: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the content of the file, one setting per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in keys.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
