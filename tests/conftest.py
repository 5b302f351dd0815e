"""What all tests share: `--all-faults`, and the rule which fault tests run without it. CONTRIBUTING.md has the tiers of the tests."""

from __future__ import annotations

import pytest

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
    parser.addoption("--all-faults", action="store_true", help="also run the fault tests that take long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long fault tests, `@pytest.mark.fault`, unless asked for; `@pytest.mark.fault(cheap=True)` always runs."""
    if config.getoption("--all-faults"):
        return
    for item in items:
        marker = item.get_closest_marker("fault")
        if marker and not marker.kwargs.get("cheap"):
            item.add_marker(pytest.mark.skip(reason="a long fault test: --all-faults or `make test-all` runs it"))
