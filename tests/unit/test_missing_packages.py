"""Module `missing_packages`: the packages that a package manager does not report as installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import FakeModule, load_role_module, run_module

packages: Any = load_role_module("munge", "missing_packages")


class Host(FakeModule):
    """A host with canned answers of its package manager."""

    def __init__(self, names: list[str], *, apt: bool = True, check: bool = False, answer: tuple[int, str, str] = (0, "", "")) -> None:
        """Store the answers."""
        self.queries: list[list[str]] = []
        super().__init__({"names": names}, check_mode=check, run=self._query, programs=["apt-get"] if apt else [])
        self.answer = answer

    def _query(self, words: list[str]) -> tuple[int, str, str]:
        self.queries.append(words)
        return self.answer


@pytest.mark.parametrize(
    ("apt", "output", "missing"),
    [
        (True, "installed munge\ninstalled slurmd\n", []),
        (True, "installed munge\n", ["slurmd"]),
        (True, "installed munge\nconfig-files slurmd\n", ["slurmd"]),  # removed, not purged
        (True, "", ["munge", "slurmd"]),
        (False, "installed munge\npackage slurmd is not installed\n", ["slurmd"]),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_missing_packages_are_a_change_only_in_check_mode(
    monkeypatch: pytest.MonkeyPatch, *, check: bool, apt: bool, output: str, missing: list[str]
) -> None:
    """In check mode the installation is skipped, so this module reports its change. The queries exit with 1 if a package is missing."""
    host = Host(["munge", "slurmd"], apt=apt, check=check, answer=(1 if missing else 0, output, ""))

    assert run_module(monkeypatch, packages, host) == ("ok", {"changed": check and bool(missing), "missing": missing})
    assert host.queries[0][0] == ("dpkg-query" if apt else "rpm")


def test_no_package_needs_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without names would list all packages."""
    host = Host([])

    assert run_module(monkeypatch, packages, host) == ("ok", {"changed": False, "missing": []})
    assert host.queries == []


def test_query_that_cannot_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages would otherwise look missing."""
    way, result = run_module(monkeypatch, packages, Host(["munge"], answer=(127, "", "dpkg-query: not found\n")))

    assert way == "failed"
    assert result["msg"] == "dpkg-query failed: dpkg-query: not found. Fix: repair the package database of this host"
