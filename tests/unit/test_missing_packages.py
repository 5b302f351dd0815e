"""Module `missing_packages`: the packages that a package manager does not report as installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import load_role_module

packages: Any = load_role_module("munge", "missing_packages")


class EndedError(Exception):
    """The module ended; `args` are the way and its result."""


class Module:
    """An AnsibleModule on a host with canned answers of its package manager."""

    def __init__(self, names: list[str], *, apt: bool = True, check: bool = False, answer: tuple[int, str, str] = (0, "", "")) -> None:
        """Store the answers."""
        self.params, self.check_mode, self.apt, self.answer = {"names": names}, check, apt, answer
        self.queries: list[list[str]] = []

    def get_bin_path(self, name: str) -> str | None:
        """Return the path of apt-get where it exists."""
        return f"/usr/bin/{name}" if self.apt else None

    def run_command(self, words: list[str]) -> tuple[int, str, str]:
        """Answer a query."""
        self.queries.append(words)
        return self.answer

    def exit_json(self, **result: Any) -> None:
        """End with success."""
        raise EndedError("ok", result)

    def fail_json(self, **result: Any) -> None:
        """End with a failure."""
        raise EndedError("failed", result)


def run(monkeypatch: pytest.MonkeyPatch, module: Module) -> tuple[str, dict[str, Any]]:
    """Run the module and return how it ends."""
    monkeypatch.setattr(packages, "AnsibleModule", lambda *_, **__: module)
    with pytest.raises(EndedError) as ended:
        packages.main()
    return ended.value.args[0], ended.value.args[1]


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
    module = Module(["munge", "slurmd"], apt=apt, check=check, answer=(1 if missing else 0, output, ""))

    assert run(monkeypatch, module) == ("ok", {"changed": check and bool(missing), "missing": missing})
    assert module.queries[0][0] == ("dpkg-query" if apt else "rpm")


def test_no_package_needs_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without names would list all packages."""
    module = Module([])

    assert run(monkeypatch, module) == ("ok", {"changed": False, "missing": []})
    assert module.queries == []


def test_query_that_cannot_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages would otherwise look missing."""
    way, result = run(monkeypatch, Module(["munge"], answer=(127, "", "dpkg-query: not found\n")))

    assert way == "failed"
    assert result["msg"] == "dpkg-query failed: dpkg-query: not found. Fix: repair the package database of this host"
