"""Module `unit_files`: a unit is restarted or reloaded if it runs with other files than those on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import FakeModule, load_role_module, run_module

if TYPE_CHECKING:
    from pathlib import Path

unit_files: Any = load_role_module("munge", "unit_files")

UNIT, SUMS = "munge.service", "/run/munge/applied"
RESTART, RELOAD = f"systemctl restart {UNIT}", f"systemctl reload {UNIT}"


class Host(FakeModule):
    """A host with one unit. `changes` are the commands that changed it."""

    def __init__(self, action: str, *, active: bool = True, same: bool = True, starts: bool = True, check: bool = False) -> None:
        """Store the state of the unit and its files."""
        super().__init__(
            {"unit": UNIT, "alias": "", "sums": SUMS, "action": action, "files": [], "check": []}, check_mode=check, run=self._run
        )
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


def reload_sshd(
    monkeypatch: pytest.MonkeyPatch, file: Path, record: Path, *, fails: str = "", check: bool = False
) -> tuple[str, Any, list[str]]:
    """Run the module for sshd; return its result and the commands. The command that begins with `fails` does."""
    commands: list[str] = []

    def run(words: list[str]) -> tuple[int, str, str]:
        commands.append(" ".join(words))
        return (1, "", "line 1: bad") if fails and commands[-1].startswith(fails) else (0, "", "")

    names = {"unit": "ssh", "alias": "sshd", "action": "reload", "check": ["sshd", "-t"], "files": [str(file)], "sums": str(record)}
    way, result = run_module(monkeypatch, unit_files, FakeModule(names, check_mode=check, run=run))
    return way, result.get("changed", result.get("msg")), commands


def test_unit_of_the_distribution_is_reloaded_once_for_each_change_of_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that appears, changes or is removed counts; check mode changes nothing and records nothing."""
    file, record = tmp_path / "sshd.conf", tmp_path / "record"
    reloaded = ("ok", True, ["systemctl cat ssh", "sshd -t", "systemctl reload ssh"])
    same = ("ok", False, ["systemctl cat ssh"])

    assert reload_sshd(monkeypatch, file, record) == same
    file.write_text("DenyUsers ada\n", encoding="utf-8")
    assert reload_sshd(monkeypatch, file, record, check=True) == ("ok", True, ["systemctl cat ssh"])
    assert [reload_sshd(monkeypatch, file, record) for _ in range(2)] == [reloaded, same]
    file.unlink()
    assert [reload_sshd(monkeypatch, file, record) for _ in range(2)] == [reloaded, same]


def test_a_wrong_configuration_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next run tries again, because nothing is recorded."""
    file, record = tmp_path / "sshd.conf", tmp_path / "record"
    file.write_text("DenyUsers ada\n", encoding="utf-8")
    way, message, commands = reload_sshd(monkeypatch, file, record, fails="sshd -t")

    assert (way, commands) == ("failed", ["systemctl cat ssh", "sshd -t"])
    assert message == "`sshd -t` failed: line 1: bad. Fix: correct what it names, then apply again"
    assert not record.exists()


def test_unit_has_another_name_on_other_distributions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's ssh is sshd on RHEL."""
    file = tmp_path / "sshd.conf"
    file.write_text("DenyUsers ada\n", encoding="utf-8")

    assert reload_sshd(monkeypatch, file, tmp_path / "record", fails="systemctl cat ssh")[2][1:] == ["sshd -t", "systemctl reload sshd"]
