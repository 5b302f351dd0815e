"""Password change of a running Redis: both passwords work until every client has the new one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import EndedError, FakeModule, load_role_module

if TYPE_CHECKING:
    from pathlib import Path

module: Any = load_role_module("redis", "redis_settings")
NEW, FORMER = "new-password-0001", "former-password-1"


class Server:
    """Redis' ACL commands for the user `default`."""

    def __init__(self, *passwords: str) -> None:
        """Store the passwords; two clients connected 10 s and 100 s ago."""
        self.passwords = list(passwords)
        self.clients = {"4": 10, "7": 100}
        self.masterauth = ""

    def call(self, password: str, line: str) -> str:
        """Return the answer."""
        if password not in self.passwords:
            return "WRONGPASS invalid username-password pair or user is disabled."
        words = line.split()
        if words[:2] == ["ACL", "SETUSER"]:
            self.passwords = [] if "resetpass" in words else self.passwords
            self.passwords += [word[1:] for word in words if word.startswith(">")]
        elif words[:2] == ["ACL", "GETUSER"]:
            return "\n".join(["flags", "on", "passwords", *(hashlib.sha256(one.encode()).hexdigest() for one in self.passwords)])
        elif words[:2] == ["CONFIG", "SET"]:
            self.masterauth = words[3]
        elif words[:2] == ["CLIENT", "LIST"]:
            return "\n".join(f"id={number} addr=10.0.0.1:5 age={age} idle=0" for number, age in self.clients.items())
        elif words[:2] == ["CLIENT", "KILL"]:
            del self.clients[words[3]]
        return "PONG" if words == ["PING"] else "OK"


def test_both_passwords_work_until_the_old_one_is_removed(tmp_path: Path) -> None:
    """A repeat changes nothing. Removal ends the connections that are older than the new password."""
    server, applied = Server(FORMER), tmp_path / "applied"
    applied.touch()

    assert [module.add_password(server.call, NEW, FORMER, applied, check=False) for _ in range(2)] == [True, False]
    assert server.passwords == [FORMER, NEW]
    assert server.masterauth == NEW
    assert [module.remove_old_password(server.call, NEW, 60.0, check=False) for _ in range(2)] == [True, False]
    assert server.passwords == [NEW]
    assert list(server.clients) == ["4"]
    assert applied.exists(), "no restart is needed"


def test_interrupted_run_is_completed(tmp_path: Path) -> None:
    """After any command the next run sets both; a replica gets the new password for its primary."""
    for last in range(2):
        server, done = Server(FORMER), 0

        def call(password: str, line: str, server: Server = server, last: int = last) -> str:
            nonlocal done
            if line.split(maxsplit=1)[0] in ("ACL", "CONFIG"):
                done += 1
                if done > last:
                    raise KeyboardInterrupt
            return server.call(password, line)

        with pytest.raises(KeyboardInterrupt):
            module.add_password(call, NEW, FORMER, tmp_path / "applied", check=False)
        assert module.add_password(server.call, NEW, FORMER, tmp_path / "applied", check=False)
        assert (server.passwords, server.masterauth) == ([FORMER, NEW], NEW)


def test_server_that_rejects_both_is_restarted(tmp_path: Path) -> None:
    """Its start record is removed, so that the role restarts it with the configured password."""
    applied = tmp_path / "applied"
    applied.touch()

    assert module.add_password(Server("another").call, NEW, FORMER, applied, check=False)
    assert not applied.exists()


@pytest.mark.parametrize("answer", ["", "LOADING Redis is loading the dataset in memory"])
def test_unreachable_server_is_not_changed(tmp_path: Path, answer: str) -> None:
    """A stopped or loading server reads the password from its file."""
    assert not module.add_password(lambda _password, _line: answer, NEW, FORMER, tmp_path / "applied", check=False)


def test_check_mode_changes_no_password(tmp_path: Path) -> None:
    """It reports a pending change."""
    server = Server(FORMER)

    assert module.add_password(server.call, NEW, FORMER, tmp_path / "applied", check=True)
    assert server.passwords == [FORMER]


def test_error_contains_no_password() -> None:
    """The message contains only the first words of the command."""
    with pytest.raises(ValueError, match=r"^ACL SETUSER was answered by ERR syntax$"):
        module.run_ok(lambda _password, _line: "ERR syntax", FORMER, f"ACL SETUSER default >{NEW}")


def test_settings_are_read_with_their_includes(tmp_path: Path) -> None:
    """Port from redis.conf, password from the included file."""
    (tmp_path / "password.conf").write_text(f"requirepass {NEW}\n")
    (tmp_path / "redis.conf").write_text(f"# a comment\nport 7000\ninclude {tmp_path}/password.conf\n")
    found = module.read_settings(tmp_path / "redis.conf")

    assert (found["port"], found["requirepass"]) == ("7000", NEW)


@pytest.mark.parametrize(("action", "line"), [("add_password", "PING"), ("remove_old_password", "ACL GETUSER default")])
def test_passwords_are_sent_on_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: str, line: str) -> None:
    """The action reads the new password from redis.conf; other users can read the arguments of redis-cli."""
    (tmp_path / "redis.conf").write_text(f"requirepass {NEW}\nport 0\ntls-port 6380\n", encoding="utf-8")
    (tmp_path / "client.env").write_text(f"REDISCLI_AUTH={FORMER}\n", encoding="utf-8")
    sent: list[Any] = []

    def redis_cli(options: Any, password: str, arguments: Any = (), stdin: str = "") -> str:
        sent.append((options[0][-1], password, list(arguments), stdin))
        return "PONG" if stdin == "PING" else hashlib.sha256(NEW.encode()).hexdigest()

    params = {"action": action, "config": str(tmp_path / "redis.conf"), "client_env": str(tmp_path / "client.env"), "applied": "/none"}
    monkeypatch.setattr(module, "AnsibleModule", lambda **_: FakeModule({**params, "previous_ports": [0, 0]}))
    monkeypatch.setattr(module, "redis_cli", redis_cli)
    with pytest.raises(EndedError) as ended:
        module.main()

    assert ended.value.args == ("ok", {"changed": False})
    assert sent == [("6380", NEW, [], line)]
