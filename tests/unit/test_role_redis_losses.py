"""What a change of the group `redis` would lose: the module `redis_state`, the filter that judges it, and the guard of the unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

state_module: Any = load_role_module("redis", "redis_state")
losses: Any = load_filters("redis").redis_losses

ADDRESS = "10.0.0.1"
EMPTY = {"answers": False, "follows": "", "files": "none"}
# As redis-cli 7.0.15 prints them; the replica was promoted with `REPLICAOF NO ONE` at offset 50 of its primary's history.
REPLICA = """# Replication\r\nrole:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\nmaster_link_status:up\r\nslave_repl_offset:50\r
master_replid:aaaa\r\nmaster_replid2:0000\r\nmaster_repl_offset:50\r\nsecond_repl_offset:-1\r\n# Keyspace\r\ndb0:keys=1,expires=0\r
db1:keys=4,expires=0,avg_ttl=0\r\n# Persistence\r\nloading:0\r\nasync_loading:0\r\naof_enabled:1\r\n"""
PROMOTED = REPLICA.replace("role:slave\r\nmaster_host:10.0.0.1\r\n", "role:master\r\n").replace("replid:aaaa", "replid:bbbb")
PROMOTED = PROMOTED.replace("replid2:0000", "replid2:aaaa").replace("second_repl_offset:-1", "second_repl_offset:51")


def of(info: str, **facts: Any) -> dict[str, Any]:
    """Return the state that an INFO makes."""
    return {"follows": "", **state_module.facts_in(info), "files": "aof", **facts}


PRIMARY = of(PROMOTED, history="aaaa", former_history="0000", former_offset=-1, offset=50)
STRANGER = of(PROMOTED, history="cccc", former_history="0000", former_offset=-1, offset=9)


def judge(first: Any, other: Any, *, give_up: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    """Return what is said of the future primary n1 and of n2; None is a host that does not answer in this run."""
    given = {"n1": first, "n2": other}
    hostvars = {name: {"__redis_state": {"state": state}} for name, state in given.items()}
    answering = [name for name, state in given.items() if state is not None]
    return tuple(losses(name, ["n1", "n2"], hostvars, answering, ADDRESS, give_up) for name in given)


def test_info_is_read() -> None:
    """Keys of all databases, the role, whom it follows and its history come from INFO as redis-cli prints it."""
    found = of(REPLICA)

    assert (found["keys"], found["role"], found["follows"], found["history"], found["offset"]) == (5, "replica", ADDRESS, "aaaa", 50)


@pytest.mark.parametrize("info", ["", "NOAUTH Authentication required.\r\n", "# Replication\r\nrole:master\r\n"])
def test_half_an_answer_is_none(info: str) -> None:
    """Where a question was not answered, nothing is taken for empty."""
    assert state_module.facts_in(info) == {"answers": False}


def test_a_server_that_loads_has_an_unknown_number_of_keys() -> None:
    """While it loads, the keys so far say nothing; the host is taken for one with data."""
    loading = of(PROMOTED.replace("\r\nloading:0", "\r\nloading:1"))

    assert loading["keys"] is None
    assert judge(EMPTY, loading)[1]


def test_the_state_is_asked_with_the_settings_that_are_there(tmp_path: Path) -> None:
    """Port, password and primary come from redis.conf and what it includes, and not from comments; without the file there is no Redis."""
    (tmp_path / "password.conf").write_text("requirepass secret-0001\n")
    text = f"# requirepass foobared\nport 0\ntls-port 7379\ninclude {tmp_path}/password.conf\nreplicaof 10.0.0.1 7379\n"
    (tmp_path / "written.conf").write_text(text)

    assert state_module.read_settings(state_module.read_config(tmp_path / "written.conf")) == {
        "port": "0",
        "tls-port": "7379",
        "requirepass": "secret-0001",
        "replicaof": "10.0.0.1 7379",
    }
    assert EMPTY.items() <= state_module.look(tmp_path / "redis.conf", tmp_path, tmp_path / "applied").items()


def test_files_say_what_a_start_would_read(tmp_path: Path) -> None:
    """An append-only file counts, old and new; a dump alone would not be read."""
    (tmp_path / "appendonlydir").mkdir()
    found = [state_module.files_in(tmp_path)]
    (tmp_path / "dump.rdb").touch()
    found.append(state_module.files_in(tmp_path))
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").touch()
    found.append(state_module.files_in(tmp_path))

    assert found == ["none", "rdb", "aof"]


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (EMPTY, EMPTY),  # a new cluster
        (PRIMARY, EMPTY),  # a new replica
        (PRIMARY, of(REPLICA)),  # every apply
        (PRIMARY, None),  # a dead replica
        (None, of(REPLICA)),  # a dead primary whose replica keeps following it
        (PRIMARY, {"answers": False, "follows": ADDRESS, "files": "aof"}),  # a replica that crashed
        (of(REPLICA, follows="10.0.0.9"), None),  # the replica becomes the primary of a dead one
        (of(PROMOTED), PRIMARY),  # a promoted replica, and its former primary, which wrote nothing since
        (PRIMARY, of(REPLICA, follows="store1")),  # the same primary under another address
    ],
)
def test_what_loses_nothing_is_let_through(first: Any, other: Any) -> None:
    """New clusters, every further apply, dead hosts and a proper promotion: nothing is refused."""
    assert judge(first, other) == ([], [])


@pytest.mark.parametrize(
    ("first", "other", "says"),
    [
        (EMPTY, of(REPLICA), "n1 holds nothing, and n2 would lose"),  # the primary's machine was replaced
        (of(PROMOTED, keys=0), of(PROMOTED), "n1 holds nothing, and n2 would lose"),
        (EMPTY, {"answers": False, "follows": "", "files": "aof"}, "n1 holds nothing, and n2 would lose"),
        (STRANGER, of(PROMOTED), "n1 may not have"),  # the former primary came back and n2 was promoted
        (of(PROMOTED), of(PROMOTED, history="aaaa", offset=78), "n1 may not have"),  # it wrote on after the promotion
        (of(REPLICA), PRIMARY, "REPLICAOF NO ONE"),  # the order was changed while both run
        ({"answers": False, "follows": "", "files": "aof"}, of(PROMOTED), "Redis runs on both"),
    ],
)
def test_what_would_empty_a_host_is_refused_on_both(first: Any, other: Any, says: str) -> None:
    """Neither host is changed, each says why and what to do, and giving the data up by name lets it through."""
    of_first, of_other = judge(first, other)

    assert of_first == of_other
    assert says in of_first[0]
    assert "Fix: " in of_first[0]
    assert judge(first, other, give_up=("n2",)) == ([], [])


def test_who_does_not_answer_is_unknown() -> None:
    """An empty primary waits for a host that may hold the data; a host with data begins to follow nobody that does not answer."""
    assert "n2, which may hold the data, does not answer" in judge(EMPTY, None)[0][0]
    assert "n1 may not have" in judge(None, of(PROMOTED))[1][0]


def test_a_dump_without_an_append_only_file_is_not_lost() -> None:
    """A Redis of somebody else's that kept dump.rdb only would start empty with our settings: refused, unless it holds nothing."""
    assert "CONFIG SET appendonly yes" in judge({**STRANGER, "files": "rdb"}, EMPTY)[0][0]
    assert judge({**STRANGER, "files": "rdb", "keys": 0}, EMPTY) == ([], [])
