"""Redis settings that change without a restart, and closing of the port without TLS."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

settings: Any = load_role_module("redis", "redis_settings")
state: Any = load_role_module("redis", "redis_state")
connection: Any = sys.modules["ansible.module_utils.redis_connection"]

# The redis.conf of a release without TLS.
FORMER = """# Ansible managed
bind 127.0.0.1 10.0.0.1
port 6379
# A new password needs no restart, so it has its own file.
include {folder}/password.conf
appendonly yes
maxmemory 0mb
maxmemory-policy noeviction
save 3600 1
"""
STATE = {"plain_port": 6379, "tls_port": 0, "memory_mib": 8192, "used_mib": 10, "answers": True}


class Server:
    """A Redis that records commands and answers CONFIG SET with `answer`."""

    def __init__(self, answer: str = "OK") -> None:
        """Store the answer."""
        self.answer = answer
        self.commands: list[str] = []

    def call(self, words: Sequence[str]) -> str:
        """Return the answer to a command."""
        self.commands.append(" ".join(words))
        return "PONG" if words[0] == "PING" else self.answer


def write(folder: Path, text: str = FORMER) -> Path:
    """Write redis.conf and its included password file."""
    (folder / "password.conf").write_text("requirepass right-password-0001\n", encoding="utf-8")
    config = folder / "redis.conf"
    config.write_text(text.format(folder=folder), encoding="utf-8")
    return config


def with_tls(folder: Path) -> Path:
    """Write redis.conf with TLS on 6380 and the port without TLS open."""
    text = FORMER.replace("port 6379\n", "include {folder}/plain.conf\ntls-port 6380\ntls-cert-file /x/server.crt\n")
    (folder / "plain.conf").write_text("port 6379\n", encoding="utf-8")
    return write(folder, text.replace("maxmemory 0mb", "maxmemory 4096mb"))


def test_tls_and_memory_limit_need_no_restart(tmp_path: Path) -> None:
    """One command applies both. The port used by mounts stays."""
    former = state.restart_digest(write(tmp_path))
    server = Server()

    assert settings.apply(server.call, with_tls(tmp_path), former, check=False)
    assert server.commands == ["PING", "CONFIG SET maxmemory 4096mb tls-cert-file /x/server.crt tls-port 6380 port 6379"]


@pytest.mark.parametrize("other", ["bind 127.0.0.1 10.0.0.2", "bind 127.0.0.1 10.0.0.1\nreplicaof 10.0.0.9 6380"])
def test_other_setting_requires_a_restart(tmp_path: Path, other: str) -> None:
    """If the address or the primary changed too, no command is sent."""
    former = state.restart_digest(write(tmp_path))
    config = with_tls(tmp_path)
    config.write_text(config.read_text("utf-8").replace("bind 127.0.0.1 10.0.0.1", other), encoding="utf-8")
    server = Server()

    assert not settings.apply(server.call, config, former, check=False)
    assert server.commands == []


@pytest.mark.parametrize(("former", "answer"), [("", "OK"), (None, "ERR CONFIG SET failed")])
def test_unknown_start_or_rejection_requires_a_restart(tmp_path: Path, former: str | None, answer: str) -> None:
    """Redis before 7.0 rejects the command. Without a start record other differences are unknown."""
    known = state.restart_digest(write(tmp_path)) if former is None else former

    assert not settings.apply(Server(answer).call, with_tls(tmp_path), known, check=False)


def test_new_certificate_is_loaded_once(tmp_path: Path) -> None:
    """The server reloads changed files, once."""
    names = {name: str(tmp_path / name) for name in settings.CERTIFICATE}
    for path in names.values():
        (tmp_path / path).write_text("first", encoding="utf-8")
    record, server = tmp_path / "loaded", Server()

    first = [settings.load_certificate(server.call, names, record, check=False) for _ in range(2)]
    (tmp_path / "tls-cert-file").write_text("second", encoding="utf-8")
    second = [settings.load_certificate(server.call, names, record, check=False) for _ in range(2)]

    assert first == [False, False]  # Started with these files.
    assert second == [True, False]
    assert len([line for line in server.commands if line.startswith("CONFIG SET tls-cert-file")]) == 2


def test_rejected_certificate_is_an_error(tmp_path: Path) -> None:
    """The message contains Redis' answer; the next run retries."""
    names = {name: str(tmp_path / name) for name in settings.CERTIFICATE}
    for path in names.values():
        (tmp_path / path).write_text("first", encoding="utf-8")

    with pytest.raises(ValueError, match="Unable to update TLS"):
        settings.load_certificate(Server("ERR Unable to update TLS").call, names, tmp_path / "loaded", check=False)
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize(("answer", "restarts"), [("OK", False), ("ERR Unsupported CONFIG parameter: port", True)])
def test_plain_port_is_closed_now_and_at_later_starts(tmp_path: Path, answer: str, *, restarts: bool) -> None:
    """If the running server cannot close it, its start record is removed, so that the role restarts it."""
    plain, applied, server = tmp_path / "plain.conf", tmp_path / "applied", Server(answer)
    plain.write_text("port 6379\n", encoding="utf-8")
    plain.chmod(0o640)
    applied.touch()

    settings.close_plain(server.call, plain, applied)

    assert server.commands == ["CONFIG SET port 0"]
    assert plain.read_text("utf-8") == "port 0\n"
    assert plain.stat().st_mode & 0o777 == 0o640
    assert applied.exists() != restarts


def test_each_client_is_listed_once() -> None:
    """Input as printed by `ss -Htn state established`; the peer's port is ignored."""
    listing = (
        "0      0      10.0.0.1:6379  10.0.0.3:51120\n0 5 10.0.0.1:6379 10.0.0.3:51126\n0 0 [::ffff:10.0.0.1]:6379 [::ffff:10.0.0.2]:4\n"
    )

    assert connection.clients_in(listing) == ["10.0.0.2", "10.0.0.3"]
    assert connection.clients_in("") == []


def test_write_does_not_follow_a_planted_link(tmp_path: Path) -> None:
    """Redis' account owns the folder and may create links there."""
    (tmp_path / "other").write_text("theirs", encoding="utf-8")
    (tmp_path / "applied").symlink_to(tmp_path / "other")

    settings.write_atomic(tmp_path / "applied", "mine\n", mode=0o600)

    assert (tmp_path / "other").read_text("utf-8") == "theirs"
    assert (tmp_path / "applied").read_text("utf-8") == "mine\n"


def test_plain_port_of_an_older_release_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role keeps it open. A package's default file, without a password, has no clients."""
    monkeypatch.setattr(state, "is_current", lambda _: True)
    monkeypatch.setattr(state, "redis_cli", lambda *_: "")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24684020 kB\nMemFree: 1 kB\n", encoding="utf-8")

    found = state.read_state(write(tmp_path), tmp_path, tmp_path / "applied", meminfo)
    package = tmp_path / "package.conf"
    package.write_text("port 6379\n", encoding="utf-8")
    fresh = state.read_state(package, tmp_path, tmp_path / "applied", meminfo)

    assert (found["plain_port"], found["tls_port"], found["memory_mib"]) == (6379, 0, 24105)
    assert found["restart_digest"] == settings.restart_digest(tmp_path / "redis.conf")
    assert (fresh["plain_port"], fresh["tls_port"]) == (0, 0)


def redis_conf(**variables: Any) -> dict[str, str]:
    """Return the settings of the rendered redis.conf of a host in this state."""
    known = {"inventory_dir": "/site", "ip": "10.0.0.1", "__redis_state": {"state": STATE}, **variables}
    lines = render("redis", "redis.conf.j2", **known).splitlines()
    return dict(line.partition(" ")[::2] for line in lines if line and not line.startswith("#"))


def test_defaults_are_tls_and_half_of_the_memory() -> None:
    """TLS has its own port, so both ports are open while mounts switch."""
    found = redis_conf()

    assert found["tls-port"] == "6380"
    assert found["maxmemory"] == "4096mb"
    assert found["maxmemory-policy"] == "noeviction"


@pytest.mark.parametrize(
    ("variables", "port"),
    [({}, "6380"), ({"redis_port": 7000}, "6380"), ({"redis_tls_cert_file": "a.crt"}, "6379"), ({"redis_tls_port": 7001}, "7001")],
)
def test_replica_uses_the_tls_port(variables: dict[str, Any], port: str) -> None:
    """A cluster with its own certificate from an older release keeps TLS on redis_port."""
    found = redis_conf(redis_primary_address="10.0.0.9", **variables)

    assert (found["tls-port"], found["replicaof"]) == (port, f"10.0.0.9 {port}")


def test_without_tls_there_are_no_tls_settings() -> None:
    """Applies to redis_tls: false."""
    found = redis_conf(redis_tls=False, redis_primary_address="10.0.0.9", redis_maxmemory_mib=100)

    assert not [name for name in found if name.startswith("tls")]
    assert (found["replicaof"], found["maxmemory"]) == ("10.0.0.9 6379", "100mb")
