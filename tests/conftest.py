"""Shared pytest configuration: the option `--all-faults`, and which tests run without it. CONTRIBUTING.md describes the tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.changed import changed_files, concerns

if TYPE_CHECKING:
    from collections.abc import Sequence

# Fixtures for all folders, so that a session starts each kind of lab and the API server only once.
pytest_plugins = [
    "tests.left_out",
    "tests.resume",
    "tests.lab.lab_fixture",
    "tests.lab.workload_fixture",
    "tests.lab.security_rig",
    "tests.kubernetes.kubernetes_fixture",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--all-faults`, which `make test-all` uses."""
    parser.addoption("--all-faults", action="store_true", help="also run fault tests, long tests and tests of unchanged code")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip fault tests and long tests unless `--all-faults` is given.

    `@pytest.mark.fault(cheap=True)` is never skipped. `@pytest.mark.long("roles/redis/")` runs if a file below that path changed.
    """
    if config.getoption("--all-faults"):
        return
    for item in items:
        marker = item.get_closest_marker("fault")
        if marker and not marker.kwargs.get("cheap"):
            item.add_marker(pytest.mark.skip(reason="fault test: run with --all-faults or `make test-all`"))
    long = [item for item in items if item.get_closest_marker("long")]
    changed = changed_files() if long else ()
    for item in long:
        _skip_unless_changed(item, changed)


def _skip_unless_changed(item: pytest.Item, changed: Sequence[str] | None) -> None:
    """Skip a long test if none of its files changed; run it if the changes are unknown."""
    paths = [path for marker in item.iter_markers("long") for path in marker.args]
    if not paths:
        raise pytest.UsageError(f"{item.nodeid}: `long` needs at least one path")
    if changed is not None and not concerns(changed, [*paths, item.nodeid.partition("::")[0]]):
        reason = f"long test, and nothing changed in {', '.join(paths)}: run with --all-faults or `make test-all`"
        item.add_marker(pytest.mark.skip(reason=reason))
