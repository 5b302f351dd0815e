"""Module `redis_effects`: verdicts on a running Redis server."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

effects: Any = load_role_module("redis", "redis_effects")

PASSWORD = "right-password-0001"
# As redis-cli 7.0.15 prints them.
HEALTHY = {
    "PING": "PONG\n",
    "INFO persistence": "# Persistence\r\nloading:0\r\n"
    "rdb_last_bgsave_status:ok\r\naof_enabled:1\r\naof_last_bgrewrite_status:ok\r\naof_last_write_status:ok\r\n",
    "INFO memory": "# Memory\r\nused_memory:1000\r\ntotal_system_memory:4000\r\nmaxmemory:0\r\n",
    "INFO replication": "# Replication\r\nrole:master\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=1\r\n",
    "CONFIG GET maxmemory-policy": "maxmemory-policy\nnoeviction\n",
}
REFUSAL = "AUTH failed: WRONGPASS invalid username-password pair or user is disabled.\nNOAUTH Authentication required.\n"


def make_server(answers: dict[str, str], refusal: str = REFUSAL) -> Any:
    """Return a server that gives these answers to the right password and refuses others."""

    def call(password: str, words: Sequence[str]) -> str:
        return answers.get(" ".join(words), "") if password == PASSWORD else refusal

    return effects.Server("n1", call, PASSWORD)


def outcomes(server: Any) -> dict[str, str]:
    """Return the verdict of each check."""
    return {record["check"].removeprefix("redis."): record["verdict"] for record in server.verdicts.records}


def test_healthy_server_passes_every_check() -> None:
    """Covers access, persistence, policy and a synchronous replica."""
    server = make_server(HEALTHY)
    effects.check_access(server)
    effects.check_durability(server)
    effects.check_replication(server, "", 1, lambda _: None)

    assert set(outcomes(server).values()) == {"pass"}
    assert len(outcomes(server)) == 9


def test_server_without_password_fails_both_refusals() -> None:
    """Open access fails, although PING works."""
    server = make_server(HEALTHY, refusal="PONG\n")
    effects.check_access(server)

    assert outcomes(server) == {"answers": "pass", "refuses_wrong_password": "fail", "refuses_no_password": "fail"}


def test_unreachable_server_is_unknown() -> None:
    """Without output of redis-cli no check passes or fails."""
    server = make_server({}, refusal="")
    effects.check_access(server)
    effects.check_durability(server)
    effects.check_replication(server, "10.0.0.1", 0, lambda _: None)

    assert set(outcomes(server).values()) == {"unknown"}


@pytest.mark.parametrize(
    ("good", "bad", "check"),
    [
        ("aof_enabled:1", "aof_enabled:0", "append_only_file"),
        ("aof_last_write_status:ok", "aof_last_write_status:err", "append_only_file.writes"),
        ("aof_last_bgrewrite_status:ok", "aof_last_bgrewrite_status:err", "append_only_file.rewrite"),
        ("rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err", "snapshot"),
        ("\nnoeviction", "\nallkeys-lru", "noeviction"),
    ],
)
def test_each_risk_of_data_loss_fails(good: str, bad: str, check: str) -> None:
    """No append-only file, a failed write, rewrite or snapshot, and an eviction policy each fail with a fix."""
    server = make_server({words: answer.replace(good, bad) for words, answer in HEALTHY.items()})
    effects.check_durability(server)
    failed = [record for record in server.verdicts.records if record["verdict"] == "fail"]

    assert [record["check"] for record in failed] == [f"redis.{check}"]
    assert all(record["fix"] for record in failed)


@pytest.mark.parametrize(
    ("used", "bound", "verdict"), [("1000", "0", "pass"), ("1000", "1010", "fail"), ("3900", "0", "fail"), ("", "0", "unknown")]
)
def test_nearly_full_memory_fails(tmp_path: Path, used: str, bound: str, verdict: str) -> None:
    """The limit is the configured one, else the machine's memory. It fails before Redis refuses writes."""
    memory = HEALTHY["INFO memory"].replace("used_memory:1000\r\n", f"used_memory:{used}\r\n" if used else "")
    server = make_server({**HEALTHY, "INFO memory": memory.replace("maxmemory:0", f"maxmemory:{bound}")})
    effects.check_free_space(server, tmp_path)

    assert outcomes(server) == {"memory": verdict, "disk": "pass"}


def test_disk_without_space_for_a_rewrite_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite of the append-only file needs a second copy. A missing folder is unknown."""
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.1.base.rdb").write_bytes(b"0" * (3 << 20))
    monkeypatch.setattr(effects.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2 << 20})())
    server = make_server(HEALTHY)
    effects.check_free_space(server, tmp_path)
    monkeypatch.undo()
    missing = make_server(HEALTHY)
    effects.check_free_space(missing, tmp_path / "none")

    assert outcomes(server)["disk"] == "fail"
    assert outcomes(missing)["disk"] == "unknown"


@pytest.mark.parametrize(
    ("shown", "newest", "verdict"),
    [
        ("Result=success\nExecMainExitTimestampMonotonic=99", "dump-1.rdb", "pass"),
        ("Result=success\nExecMainExitTimestampMonotonic=0", "", "skipped"),
        ("Result=exit-code\nExecMainExitTimestampMonotonic=99", "dump-1.rdb", "fail"),
        ("Result=success\nExecMainExitTimestampMonotonic=99", "", "unknown"),
        ("", "", "unknown"),
    ],
)
def test_failed_backup_fails(shown: str, newest: str, verdict: str) -> None:
    """The last run must have succeeded and created a backup."""
    server = make_server(HEALTHY)
    effects.check_backup(server, dict(line.split("=") for line in shown.splitlines()), newest)

    assert outcomes(server) == {"backup": verdict}


def test_replica_is_waited_for() -> None:
    """A new replica copies all data first; it passes as soon as the link is up."""
    answers = {"INFO replication": "role:slave\r\nmaster_link_status:down\r\n"}
    server = make_server(answers)

    def heal(_: float) -> None:
        answers["INFO replication"] = "role:slave\r\nmaster_link_status:up\r\n"

    effects.check_replication(server, "10.0.0.1", 0, heal)

    assert outcomes(server) == {"replication": "pass"}


def test_missing_replica_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary with too few synchronous replicas fails after the waiting time."""
    monkeypatch.setattr(effects, "SYNC_S", 0.0)
    server = make_server({"INFO replication": "role:master\r\nslave0:ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0\r\n"})
    effects.check_replication(server, "", 1, lambda _: None)

    assert outcomes(server) == {"replication": "fail"}
    assert server.verdicts.records[0]["found"] == "0 online"


def test_single_host_skips_replication() -> None:
    """The record gives the reason."""
    server = make_server(HEALTHY)
    effects.check_replication(server, "", 0, lambda _: None)

    assert outcomes(server) == {"replication": "skipped"}


def test_overcommit_is_checked_if_configurable(tmp_path: Path) -> None:
    """0 fails if root could change it; a kernel without the file is skipped."""
    setting = tmp_path / "overcommit_memory"
    setting.write_text("0\n", encoding="ascii")
    server = make_server(HEALTHY)
    effects.check_host(server, "active", str(setting))
    effects.check_host(server, "inactive", str(tmp_path / "none"))

    assert [record["verdict"] for record in server.verdicts.records] == ["pass", "fail", "fail", "skipped"]


def test_password_may_contain_an_equals_sign(tmp_path: Path) -> None:
    """Everything after the first equals sign belongs to the password."""
    path = tmp_path / "client.env"
    path.write_text("REDISCLI_AUTH=a=b+c/d==\n", encoding="utf-8")

    assert effects.read_password(str(path)) == "a=b+c/d=="


def test_no_verdict_contains_the_password() -> None:
    """Verdicts are written to journal and report."""
    server = make_server({**HEALTHY, "PING": "unexpected\n"})
    effects.check_access(server)

    assert PASSWORD not in str(server.verdicts.records)


@pytest.mark.parametrize(("keep", "fix"), [(False, "without --limit"), (True, "secrets rotate redis --interrupt")])
def test_old_password_in_pods_is_reported_with_a_fix(fix: str, *, keep: bool) -> None:
    """The fix differs if mounts in pods use the old password."""
    server = make_server({"ACL GETUSER default": f"passwords\n{'a' * 64}\n{'b' * 64}\n"})
    effects.check_passwords(server, keep_old_password=keep)

    assert outcomes(server) == {"one_password": "fail"}
    assert fix in server.verdicts.records[0]["fix"]


@pytest.mark.parametrize(
    ("tls", "port", "users", "verdict", "words"),
    [
        (True, "0", [], "pass", "closed"),
        (True, "6379", ["10.0.0.3"], "fail", "6379 open, used by 10.0.0.3"),
        (True, "6379", [], "fail", "6379 open, used by no client now"),
        (True, "", [], "unknown", ""),
        (False, "6379", [], "skipped", "6379"),
    ],
)
def test_open_plain_port_is_reported_with_its_clients(*, tls: bool, port: str, users: list[str], verdict: str, words: str) -> None:
    """It fails until it is closed. Without TLS it is skipped."""
    server = make_server({"CONFIG GET port": f"port\n{port}\n" if port else ""})
    effects.check_plain_port(server, tls=tls, users=lambda _: users)

    assert (server.verdicts.records[0]["verdict"], server.verdicts.records[0]["found"]) == (verdict, words)
    assert verdict != "fail" or "apply hosts.yaml --phase storage" in server.verdicts.records[0]["fix"]


@pytest.mark.parametrize(("days", "verdict"), [(400, "pass"), (30, "pass"), (29, "fail"), (-1, "fail")])
def test_expiring_certificate_fails_in_advance(days: int, verdict: str) -> None:
    """Clients still accept it at that time."""
    server = make_server(HEALTHY)
    effects.check_certificate(server, lambda: 1000.0 + days * 86400, 30, now=1000.0)

    assert outcomes(server) == {"certificate": verdict}


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(ssl.SSLCertVerificationError("self-signed certificate"), "fail"), (ConnectionRefusedError("refused"), "unknown")],
)
def test_rejected_certificate_fails_and_unreachable_server_is_unknown(error: OSError, verdict: str) -> None:
    """A client with the configured authority must accept it."""

    def ends() -> float:
        raise error

    server = make_server(HEALTHY)
    effects.check_certificate(server, ends, 30, now=0.0)

    assert outcomes(server) == {"certificate": verdict}
