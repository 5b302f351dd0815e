"""The settings that the pinned version of a backend accepts, as data, so that a mistake is found where nothing of the backend is installed.

workloads/backends/<name>/write_keys.py generates the file from the backend's own parser; a test compares them.
"""

from __future__ import annotations

import json
import math
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.launch.backends.contract import Key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.recipes.recipe import Recipe


@cache
def read_keys(backend: str, version: str) -> Mapping[str, Key]:
    """Return the settings of data/backends/<backend>-<version>.json by name."""
    data = json.loads(pkgutil.get_data("primus_bootstrap.launch", f"data/backends/{backend}-{version}.json") or b"{}")
    return {
        name: Key(name, facts["kind"], facts.get("default"), tuple(facts.get("choices", ())), facts.get("option", ""), facts.get("off", ""))
        for name, facts in data.items()
    }


def unknown_key(name: str, known: Mapping[str, Key], prefix: str = "") -> str:
    """Return the fix for a name that does not exist; `prefix` is put before the suggestion."""
    near = nearest(name, known)
    return f"did you mean {prefix}{near}?" if near else "look for its name in the documentation of the backend"


def check_recipe(recipe: Recipe, version: str, known: Mapping[str, Key]) -> None:
    """Check that the pinned version of a backend has the settings of a recipe.

    Raises:
        UsageError: It lacks some.
    """
    unknown = sorted(set(recipe.keys) - set(known))
    if unknown:
        what = f"the recipe {recipe.name} has settings that {recipe.backend} {version} does not have: {', '.join(unknown)}"
        raise UsageError(what, fix="report this, or choose another recipe: primus-cli recipe list")


def problem(key: Key, value: Any) -> tuple[str, str]:
    """Return what is wrong with a value, and the fix; two empty texts if it fits."""
    if value is None:
        return "no value", "give it a value, or remove it"
    if key.choices:
        values = value if isinstance(value, list) else str(value).split(",") if key.kind == "list" else [value]
        known = [str(choice) for choice in key.choices]
        wrong = next((item for item in values if str(item) not in known), None)
        return (f"found {wrong!r}", f"choose from: {', '.join(known)}") if wrong is not None else ("", "")
    fits, expected = _KINDS.get(key.kind, (None, ""))
    return (f"found {value!r}", f"give {expected}") if fits is not None and not fits(value) else ("", "")


def typed(key: Key, value: Any) -> Any:
    """Return a value that fits in the key's type: arguments are texts."""
    if key.kind in ("bool", "flag"):
        return str(value).lower() == "true"
    if key.kind == "list":
        return [item for item in value.split(",") if item] if isinstance(value, str) else list(value)
    if key.kind in ("int", "float"):
        return {"int": int, "float": float}[key.kind](value)
    return value


def _is_int(value: Any) -> bool:
    return not isinstance(value, (bool, float)) and str(value).strip().lstrip("+-").isdecimal()


def _is_float(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _is_bool(value: Any) -> bool:
    return str(value).lower() in ("true", "false")


_KINDS = {
    "bool": (_is_bool, "true or false"),
    "flag": (_is_bool, "true or false"),
    "int": (_is_int, "a whole number"),
    "float": (_is_float, "a number"),
    "str": (lambda value: isinstance(value, (str, int, float)) and not isinstance(value, bool), "a text"),
    "list": (lambda value: isinstance(value, (str, list)), "a list (as an argument: separated by commas)"),
}
