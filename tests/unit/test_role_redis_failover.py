"""Module `redis_effects`: verdicts on the sentinels of the group `redis`; and the settings of a group that fails over automatically."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.unit.role_module import load_role_module
from tests.unit.test_role_templates import render

effects: Any = load_role_module("redis", "redis_effects")
failover: Any = sys.modules["ansible.module_utils.redis_failover_checks"]

ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
STATE = {"plain_port": 0, "tls_port": 0, "memory_mib": 8192, "keys": 0, "answers": True, "follows": "", "files": "none"}


def verdict_of(check: Any, *arguments: Any) -> tuple[str, str]:
    """Return verdict and reason of a check."""
    verdicts = effects.Verdicts("redis", "n1")
    check(verdicts, *arguments)
    (record,) = verdicts.records
    return record["verdict"], record.get("reason", "")


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("OK 3 usable Sentinels. Quorum and failover authorization can be reached", "pass"),
        ("OK 2 usable Sentinels. Quorum and failover authorization can be reached", "fail"),
        ("NOQUORUM 1 usable Sentinels. Not enough available Sentinels to reach the majority and authorize a failover", "fail"),
        ("", "unknown"),
    ],
)
def test_every_sentinel_of_the_group_must_be_usable(answer: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with one sentinel less has no reserve; a sentinel that does not answer is unknown."""
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr(failover.time, "monotonic", lambda: float(next(clock)))

    assert verdict_of(failover.check_quorum, lambda: answer, 3, lambda _: None)[0] == verdict


@pytest.mark.parametrize(("usable", "verdict"), [(2, "fail"), (3, "pass"), (4, "pass"), (5, "fail")])
def test_host_that_is_being_replaced_may_run_or_not(usable: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new host is there, and the old one is removed at the end of the run. It may be dead."""
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr(failover.time, "monotonic", lambda: float(next(clock)))

    assert verdict_of(failover.check_quorum, lambda: f"OK {usable} usable Sentinels. Quorum", 3, lambda _: None, 1)[0] == verdict


def test_quorum_waits_for_sentinels_that_have_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """They announce themselves every two seconds."""
    answers = iter(["NOQUORUM 1 usable Sentinels", "OK 3 usable Sentinels"])
    monkeypatch.setattr(failover.time, "monotonic", lambda: 0.0)

    assert verdict_of(failover.check_quorum, lambda: next(answers), 3, lambda _: None)[0] == "pass"


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        (["10.0.0.2", "10.0.0.2", "10.0.0.2"], "pass"),
        (["10.0.0.2", "10.0.0.1", "10.0.0.2"], "fail"),
        (["10.0.0.2", "", "10.0.0.2"], "unknown"),
        (["", "", ""], "unknown"),
    ],
)
def test_all_sentinels_must_name_one_primary(answers: list[str], verdict: str) -> None:
    """Two names are two primaries for clients. A silent sentinel might name another one."""
    assert verdict_of(failover.check_agreement, dict(zip(ADDRESSES, answers, strict=True)))[0] == verdict


@pytest.mark.parametrize(
    ("primary", "info", "verdict"),
    [
        ("10.0.0.1", "role:master\r\n", "pass"),
        ("10.0.0.2", "role:slave\r\nmaster_host:10.0.0.2\r\n", "pass"),
        ("10.0.0.2", "role:slave\r\nmaster_host:10.0.0.3\r\n", "fail"),
        ("10.0.0.2", "role:master\r\n", "fail"),
        ("10.0.0.2", "", "unknown"),
        ("", "role:master\r\n", "unknown"),
    ],
)
def test_redis_has_the_role_that_the_sentinels_know(primary: str, info: str, verdict: str) -> None:
    """A second primary, or a replica of a host that is not the primary, fails."""
    assert verdict_of(failover.check_role, "10.0.0.1", primary, failover.parse_role(info))[0] == verdict


@pytest.mark.parametrize(("answer", "verdict"), [("NOPERM this user has no permissions", "pass"), ("OK 3 usable", "fail"), ("", "unknown")])
def test_sentinel_refuses_commands_without_a_password(answer: str, verdict: str) -> None:
    """Anyone could start a failover otherwise."""
    assert verdict_of(failover.check_access, answer)[0] == verdict


@pytest.mark.parametrize(
    ("replicas", "hosts", "verdict"), [("1", 3, "pass"), ("2", 5, "pass"), ("1", 5, "fail"), ("0", 3, "fail"), ("", 3, "unknown")]
)
def test_writes_need_a_majority(replicas: str, hosts: int, verdict: str) -> None:
    """A changed setting would let a cut-off primary accept writes."""
    assert verdict_of(failover.check_acknowledgement, replicas, hosts)[0] == verdict


@pytest.mark.parametrize(("hosts", "replicas"), [(3, 1), (4, 2), (5, 2)])
def test_a_primary_on_the_smaller_side_of_a_split_network_accepts_no_writes(hosts: int, replicas: int) -> None:
    """The sentinels of the other side elect a primary. With its replicas, the old one would have to be a majority."""
    addresses = [f"10.0.0.{number}" for number in range(1, hosts + 1)]
    config = render("redis", "redis.conf.j2", **group("", redis_group_addresses=addresses)).splitlines()

    assert f"min-replicas-to-write {replicas}" in config
    assert replicas + 1 > hosts / 2


def group(primary: str, **variables: Any) -> dict[str, Any]:
    """Return the variables of host 10.0.0.1 in a group of three whose sentinels name this primary; empty = they do not answer."""
    known = {
        "inventory_dir": "/site",
        "ip": "10.0.0.1",
        "redis_password": "p" * 16,
        "redis_group_addresses": ADDRESSES,
        "redis_group_hosts": ["n1", "n2", "n3"],
        "__redis_state": {"state": STATE},
        "__redis_user_namespaces": {"rc": 0},
        "__redis_current_primary": {"stdout": primary},
    }
    return known | variables


@pytest.mark.parametrize("name", ["redis.conf.j2", "unit.conf.j2", "sentinel-settings.conf.j2", "sentinel.service.j2"])
def test_a_failover_changes_no_file_of_the_role(name: str) -> None:
    """An apply after a failover changes nothing, so it restarts nothing and gives no host its former role back."""
    files = {render("redis", name, **group(primary)) for primary in ("", *ADDRESSES)}

    assert len(files) == 1


def test_settings_of_a_group_of_three() -> None:
    """redis.conf has no fixed primary, and a primary without a replica accepts no writes. Two of three sentinels decide."""
    config = render("redis", "redis.conf.j2", **group("")).splitlines()
    unit = render("redis", "sentinel.service.j2", **group(""))

    assert [line for line in config if line.startswith("replicaof")] == []
    assert "min-replicas-to-write 1" in config
    assert "include /run/redis/replication.conf" in config
    assert ",".join(ADDRESSES) in unit
    assert " 6380 2\n" in unit


def test_sentinels_agree_within_half_a_minute() -> None:
    """If the first vote fails, the next one is after twice the failover-timeout. Sentinel runs the script that ends a former primary."""
    settings = render("redis", "sentinel-settings.conf.j2", **group("")).splitlines()
    words = {line.split()[1]: line.split()[3] for line in settings if line.startswith("sentinel ") and len(line.split()) == 4}

    assert int(words["down-after-milliseconds"]) + 2 * int(words["failover-timeout"]) < 25_000
    assert words["client-reconfig-script"] == "/usr/local/lib/primus/redis_fence.sh"


def test_a_group_of_two_has_a_fixed_primary() -> None:
    """Two hosts have no majority: failover stays manual."""
    known = group("", redis_group_addresses=ADDRESSES[:2], redis_primary_address="10.0.0.2")
    config = render("redis", "redis.conf.j2", **known).splitlines()

    assert "replicaof 10.0.0.2 6380" in config
    assert [line for line in config if line.startswith(("include /run", "min-replicas"))] == []


def test_redis_cannot_rewrite_its_configuration() -> None:
    """Sentinel makes Redis rewrite redis.conf after a failover; Debian's unit would allow it."""
    unit = render("redis", "unit.conf.j2", **group("")).splitlines()
    paths = [line for line in unit if line.startswith("ReadWritePaths")]

    assert paths == ["ReadWritePaths=", "ReadWritePaths=/var/lib/redis"]


@pytest.mark.parametrize(
    ("sentinels", "authority"),
    [([], "rediss://10.0.0.1:6380/1?"), (ADDRESSES, "rediss://primary,10.0.0.1,10.0.0.2,10.0.0.3:26379/1?")],
)
def test_mounts_ask_the_sentinels(sentinels: list[str], authority: str) -> None:
    """The URL names all of them, so it is the same before and after a failover."""
    known: dict[str, Any] = {
        "juicefs_redis_address": "10.0.0.1",
        "juicefs_redis_port": 6380,
        "juicefs_redis_sentinels": sentinels,
        "juicefs_redis_tls": True,
        "juicefs_redis_ca_file": "ca.crt",
        "juicefs_sha256": "0" * 64,
        "inventory_dir": "/site",
        "ansible_facts": {"os_family": "Debian", "architecture": "x86_64"},
    }

    assert authority in render("juicefs", "juicefs.service.j2", **known)


def test_a_group_with_failover_gets_all_verdicts() -> None:
    """Each question goes to the right sentinel and account; the host that is being replaced is not asked."""
    asked: list[tuple[str, str, str]] = []
    answers = {"CKQUORUM": "OK 2 usable Sentinels. Quorum", "GET-MASTER-ADDR-BY-NAME": "10.0.0.1\n6379"}

    def ask(address: str, account: str, words: Any) -> str:
        asked.append((address, account, words[1]))
        return "NOPERM" if not account and words[1] == "CKQUORUM" else answers[words[1]]

    replies = {"INFO": "role:slave\r\nmaster_host:10.0.0.1\r\n", "CONFIG": "min-replicas-to-write\n1"}
    verdicts = effects.Verdicts("redis", "n2")
    sentinel = {"name": "primary", "account": "primus", "address": "10.0.0.2", "addresses": ADDRESSES, "leaving": "10.0.0.3", "port": 1}
    failover.check_failover(verdicts, sentinel, ask, lambda *words: replies[words[0]])

    found = {record["check"].removeprefix("redis.failover."): record["verdict"] for record in verdicts.records}
    assert found == dict.fromkeys(("quorum", "one_primary", "role", "refuses_no_password", "needs_replica"), "pass")
    assert asked == [
        ("10.0.0.2", "primus", "CKQUORUM"),
        ("10.0.0.1", "", "GET-MASTER-ADDR-BY-NAME"),
        ("10.0.0.2", "", "GET-MASTER-ADDR-BY-NAME"),
        ("10.0.0.2", "", "CKQUORUM"),
    ]
