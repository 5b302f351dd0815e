"""Find all checks and select some by patterns. To add a check, add a module to the folder of its area."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.checks.model import PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.checks.model import Check

AREAS = ("gpu", "network", "host", "job")


def all_checks() -> tuple[Check, ...]:
    """Return every check, sorted by area and name."""
    found: list[Check] = []
    for area in AREAS:
        package = importlib.import_module(f"primus_bootstrap.launch.checks.{area}")
        modules = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
        found.extend(replace(importlib.import_module(f"{package.__name__}.{name}").CHECK, area=area) for name in modules)
    return tuple(found)


def select(checks: Sequence[Check], patterns: str) -> tuple[tuple[Check, ...], frozenset[str]]:
    """Return the checks, and the names of their records, that match a list of patterns like `gpu_*,!gpu_idle`.

    A pattern matches areas, checks and records, with or without `preflight_`. `!` excludes. An empty list selects all.

    Raises:
        UsageError: A pattern matches nothing.
    """
    given = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    known = {word for check in checks for word in (check.area, check.name, *check.record_names)}
    for pattern in given:
        if not any(_matches(pattern, word) for word in known):
            raise UsageError(f"--checks: no check matches {pattern}", fix=did_you_mean(_without_prefix(pattern), known))
    included = [pattern for pattern in given if not pattern.startswith("!")]
    excluded = [pattern for pattern in given if pattern.startswith("!")]
    names: set[str] = set()
    selected: list[Check] = []
    for check in checks:
        records = {name for name in check.record_names if (not included or _any(check, name, included)) and not _any(check, name, excluded)}
        if records:
            selected.append(check)
            names |= records
    return tuple(selected), frozenset(names)


def _any(check: Check, record: str, patterns: Sequence[str]) -> bool:
    return any(_matches(pattern, word) for pattern in patterns for word in (check.area, check.name, record))


def _matches(pattern: str, word: str) -> bool:
    return fnmatchcase(word, _without_prefix(pattern))


def _without_prefix(pattern: str) -> str:
    return pattern.removeprefix("!").removeprefix(PREFIX)
