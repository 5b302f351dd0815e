"""Module `unit_files`: a unit is restarted or reloaded if it runs with other files than those on the host."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import FakeModule, load_role_module, run_module

unit_files: Any = load_role_module("munge", "unit_files")

UNIT, SUMS = "munge.service", "/run/munge/applied"
RESTART, RELOAD = f"systemctl restart {UNIT}", f"systemctl reload {UNIT}"


class Host(FakeModule):
    """A host with one unit. `changes` are the commands that changed it."""

    def __init__(self, action: str, *, active: bool = True, same: bool = True, starts: bool = True, check: bool = False) -> None:
        """Store the state of the unit and its files."""
        super().__init__({"unit": UNIT, "sums": SUMS, "action": action}, check_mode=check, run=self._run)
        self.active, self.same, self.starts = active, same, starts
        self.changes: list[str] = []

    def _run(self, words: list[str]) -> tuple[int, str, str]:
        if words[:2] == ["systemctl", "is-active"]:
            return (0 if self.active else 3), "", ""
        if words[0] == "sha256sum":
            assert words[-1] == SUMS
            return (0 if self.same else 1), "", ""
        if words[0] == "journalctl":
            return 0, "munged: bad key\n", ""
        self.changes.append(" ".join(words))
        return (0, "", "") if self.starts or "reset-failed" in words else (1, "", "Job failed.\n")


@pytest.mark.parametrize(
    ("action", "active", "same", "expected"),
    [
        ("restart", True, True, []),
        ("restart", True, False, [f"systemctl reset-failed {UNIT}", RESTART]),
        ("restart", False, True, [f"systemctl reset-failed {UNIT}", RESTART]),
        ("reload", True, True, []),
        ("reload", True, False, [RELOAD]),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_unit_is_changed_if_it_does_not_run_with_its_files(
    monkeypatch: pytest.MonkeyPatch, *, check: bool, action: str, active: bool, same: bool, expected: list[str]
) -> None:
    """Check mode reports the same change and runs no command."""
    host = Host(action, active=active, same=same, check=check)

    assert run_module(monkeypatch, unit_files, host) == ("ok", {"changed": bool(expected)})
    assert host.changes == ([] if check else expected)


def test_failed_restart_shows_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the error of systemctl and the last lines of the unit."""
    way, result = run_module(monkeypatch, unit_files, Host("restart", same=False, starts=False))

    assert way == "failed"
    assert result["msg"].splitlines()[:3] == [f"`{RESTART}` failed:", "Job failed.", "munged: bad key"]
    assert "Fix: " in result["msg"]
