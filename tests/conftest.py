"""What all tests share: `--all-faults`, and the rule which long tests run without it. CONTRIBUTING.md has the tiers of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.changed import changed_files, concerns

if TYPE_CHECKING:
    from collections.abc import Sequence

# Their fixtures are for the tests of every folder alike, so that a session has one lab of each kind and one API server.
pytest_plugins = [
    "tests.resume",
    "tests.lab.lab_fixture",
    "tests.lab.workload_fixture",
    "tests.lab.security_rig",
    "tests.kubernetes.kubernetes_fixture",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test-all` gives."""
    parser.addoption("--all-faults", action="store_true", help="also run the fault tests and the other tests that take long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless asked for.

    `@pytest.mark.fault` is left out, `@pytest.mark.fault(cheap=True)` never is. `@pytest.mark.long("roles/redis/")` runs where
    something below that path has changed.
    """
    if config.getoption("--all-faults"):
        return
    for item in items:
        marker = item.get_closest_marker("fault")
        if marker and not marker.kwargs.get("cheap"):
            item.add_marker(pytest.mark.skip(reason="a long fault test: --all-faults or `make test-all` runs it"))
    long = [item for item in items if item.get_closest_marker("long")]
    changed = changed_files() if long else ()
    for item in long:
        _leave_out_unless_changed(item, changed)


def _leave_out_unless_changed(item: pytest.Item, changed: Sequence[str] | None) -> None:
    """Skip a long test of which nothing has changed; where nobody knows what has changed it runs."""
    paths = [path for marker in item.iter_markers("long") for path in marker.args]
    if not paths:
        raise pytest.UsageError(f"{item.nodeid}: `long` names no path whose change makes it run")
    if changed is not None and not concerns(changed, [*paths, item.nodeid.partition("::")[0]]):
        reason = f"takes long, and nothing of {', '.join(paths)} has changed: --all-faults or `make test-all` runs it"
        item.add_marker(pytest.mark.skip(reason=reason))
