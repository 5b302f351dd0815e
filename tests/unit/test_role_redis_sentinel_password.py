"""Module `sentinel_password`: a running sentinel gets a new password without a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

module: Any = load_role_module("redis", "sentinel_password")
NEW, FORMER = "new-password-0001", "former-password-1"


class Sentinel:
    """Sentinel's commands for passwords. It writes what it uses into its state file, as Sentinel does."""

    def __init__(self, state: Path, *passwords: str) -> None:
        """Use the first password for everything."""
        self.state, self.passwords = state, list(passwords)
        self.used = {"auth-pass": passwords[0], "sentinel-pass": passwords[0]}
        self._write()

    def _write(self) -> None:
        lines = [f"sentinel auth-pass primary {self.used['auth-pass']}", f'sentinel sentinel-pass "{self.used["sentinel-pass"]}"']
        self.state.write_text("\n".join(["sentinel myid 1", *lines, ""]))

    def call(self, password: str, line: str) -> str:
        """Return the answer."""
        if password not in self.passwords:
            return "WRONGPASS invalid username-password pair or user is disabled."
        words = line.split()
        if words[:3] == ["ACL", "SETUSER", "sentinel"]:
            self.passwords += [word[1:] for word in words if word.startswith(">")]
        elif words[:3] == ["SENTINEL", "SET", "primary"] or words[:3] == ["SENTINEL", "CONFIG", "SET"]:
            self.used[words[3]] = words[4]
            self._write()
        return "PONG" if words == ["PING"] else "OK"


def test_a_sentinel_accepts_both_passwords_and_sends_the_new_one(tmp_path: Path) -> None:
    """A repeat changes nothing."""
    sentinel = Sentinel(tmp_path / "sentinel.conf", FORMER)

    assert [module.accept(sentinel.call, NEW, sentinel.state, "sentinel") for _ in range(2)] == [True, False]
    assert sentinel.passwords == [FORMER, NEW]
    assert sentinel.used == {"auth-pass": FORMER, "sentinel-pass": FORMER}
    assert [module.send(sentinel.call, NEW, sentinel.state, "primary") for _ in range(2)] == [True, False]
    assert sentinel.used == {"auth-pass": NEW, "sentinel-pass": NEW}


def test_a_run_that_ended_between_two_commands_is_finished(tmp_path: Path) -> None:
    """Sentinel sends the new password to Redis, and still the old one to the other sentinels."""
    sentinel = Sentinel(tmp_path / "sentinel.conf", FORMER, NEW)
    sentinel.call(FORMER, f"SENTINEL SET primary auth-pass {NEW}")

    assert module.send(sentinel.call, NEW, sentinel.state, "primary")
    assert sentinel.used["sentinel-pass"] == NEW


@pytest.mark.parametrize("answer", ["", "WRONGPASS invalid username-password pair or user is disabled."])
def test_a_sentinel_that_cannot_be_reached_is_left_to_its_restart(tmp_path: Path, answer: str) -> None:
    """It does not run, or its state file has no valid password."""
    state = tmp_path / "sentinel.conf"

    assert not module.accept(lambda *_: answer, NEW, state, "sentinel")
    assert not module.send(lambda *_: answer, NEW, state, "primary")


def test_an_error_does_not_contain_the_password(tmp_path: Path) -> None:
    """Only the name of the command is shown."""
    sentinel = Sentinel(tmp_path / "sentinel.conf", FORMER)

    def call(password: str, line: str) -> str:
        return "ERR no such user" if line.startswith("ACL") else sentinel.call(password, line)

    with pytest.raises(ValueError, match=r"ACL SETUSER was answered by ERR") as caught:
        module.accept(call, NEW, sentinel.state, "sentinel")

    assert NEW not in str(caught.value)
