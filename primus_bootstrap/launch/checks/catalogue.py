"""Which checks there are, and which of them a command line means. A new check is a module in one of the areas."""

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
    from collections.abc import Collection, Sequence

    from primus_bootstrap.launch.checks.model import Check

AREAS = ("gpu", "network", "host", "job")


def all_checks() -> tuple[Check, ...]:
    """Return every check, by area and name."""
    found: list[Check] = []
    for area in AREAS:
        package = importlib.import_module(f"primus_bootstrap.launch.checks.{area}")
        modules = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
        found.extend(replace(importlib.import_module(f"{package.__name__}.{name}").CHECK, area=area) for name in modules)
    return tuple(found)


def select(checks: Sequence[Check], patterns: str) -> tuple[tuple[Check, ...], frozenset[str]]:
    """Return the checks and the names of the records that a list like `gpu_*,!gpu_idle` means; an empty one means all.

    A pattern means an area, a check or a record, with or without `preflight_`.

    Raises:
        UsageError: A pattern means nothing.
    """
    asked = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    words = {word for check in checks for word in (check.area, check.name, *check.record_names)}
    for pattern in asked:
        if not any(_matches(pattern, word) for word in words):
            raise UsageError(f"--checks: {pattern} means no check", fix=did_you_mean(_bare(pattern), words))
    wanted = [pattern for pattern in asked if not pattern.startswith("!")]
    unwanted = [pattern for pattern in asked if pattern.startswith("!")]
    names: set[str] = set()
    chosen: list[Check] = []
    for check in checks:
        kept = {name for name in check.record_names if _means(check, name, wanted, default=True) and not _means(check, name, unwanted)}
        if kept:
            chosen.append(check)
            names |= kept
    return tuple(chosen), frozenset(names)


def _means(check: Check, name: str, patterns: Collection[str], *, default: bool = False) -> bool:
    if not patterns:
        return default
    return any(_matches(pattern, word) for pattern in patterns for word in (check.area, check.name, name))


def _matches(pattern: str, word: str) -> bool:
    return fnmatchcase(word, _bare(pattern))


def _bare(pattern: str) -> str:
    return pattern.removeprefix("!").removeprefix(PREFIX)
