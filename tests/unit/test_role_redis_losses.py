"""Protection against data loss in the group `redis`: module `redis_state`, its filter, and the guard of the unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

state_module: Any = load_role_module("redis", "redis_state")
losses: Any = load_filters("redis").redis_data_loss_errors

ADDRESS = "10.0.0.1"
EMPTY = {"answers": False, "follows": "", "files": "none"}
# As redis-cli 7.0.15 prints them; the replica was promoted with `REPLICAOF NO ONE` at offset 50 of its primary's history.
REPLICA = """# Replication\r\nrole:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\nmaster_link_status:up\r\nslave_repl_offset:50\r
master_replid:aaaa\r\nmaster_replid2:0000\r\nmaster_repl_offset:50\r\nsecond_repl_offset:-1\r\n# Keyspace\r\ndb0:keys=1,expires=0\r
db1:keys=4,expires=0,avg_ttl=0\r\n# Persistence\r\nloading:0\r\nasync_loading:0\r\naof_enabled:1\r\n"""
PROMOTED = REPLICA.replace("role:slave\r\nmaster_host:10.0.0.1\r\n", "role:master\r\n").replace("replid:aaaa", "replid:bbbb")
PROMOTED = PROMOTED.replace("replid2:0000", "replid2:aaaa").replace("second_repl_offset:-1", "second_repl_offset:51")


def state_from(info: str, **facts: Any) -> dict[str, Any]:
    """Return the state that an INFO text gives."""
    return {"follows": "", **state_module.parse_info(info), "files": "aof", **facts}


PRIMARY = state_from(PROMOTED, history="aaaa", former_history="0000", former_offset=-1, offset=50)
STRANGER = state_from(PROMOTED, history="cccc", former_history="0000", former_offset=-1, offset=9)


def refusals_of(first: Any, other: Any, *, discard_on: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    """Return the refusals for the future primary n1 and for n2; None is a host without an answer."""
    given = {"n1": first, "n2": other}
    hostvars = {name: {"__redis_state": {"state": state}} for name, state in given.items()}
    answering = [name for name, state in given.items() if state is not None]
    return tuple(losses(name, ["n1", "n2"], hostvars, answering, ADDRESS, discard_on) for name in given)


def test_info_is_parsed() -> None:
    """Keys of all databases, role, primary and replication id are read from redis-cli output."""
    found = state_from(REPLICA)

    assert (found["keys"], found["role"], found["follows"], found["history"], found["offset"]) == (5, "replica", ADDRESS, "aaaa", 50)


@pytest.mark.parametrize("info", ["", "NOAUTH Authentication required.\r\n", "# Replication\r\nrole:master\r\n"])
def test_incomplete_answer_gives_no_state(info: str) -> None:
    """A missing answer is not taken for an empty server."""
    assert state_module.parse_info(info) == {"answers": False}


def test_loading_server_has_an_unknown_number_of_keys() -> None:
    """The host is treated as one with data."""
    loading = state_from(PROMOTED.replace("\r\nloading:0", "\r\nloading:1"))

    assert loading["keys"] is None
    assert refusals_of(EMPTY, loading)[1]


def test_state_is_queried_with_the_current_settings(tmp_path: Path) -> None:
    """Port, password and primary come from redis.conf and its includes. Without the file there is no Redis."""
    (tmp_path / "password.conf").write_text("requirepass secret-0001\n")
    text = f"# requirepass foobared\nport 0\ntls-port 7379\ninclude {tmp_path}/password.conf\nreplicaof 10.0.0.1 7379\n"
    (tmp_path / "written.conf").write_text(text)

    assert state_module.read_settings(tmp_path / "written.conf") == {
        "port": "0",
        "tls-port": "7379",
        "requirepass": "secret-0001",
        "replicaof": "10.0.0.1 7379",
    }
    assert EMPTY.items() <= state_module.read_state(tmp_path / "redis.conf", tmp_path, tmp_path / "applied").items()


def test_files_show_the_data_that_a_start_would_load(tmp_path: Path) -> None:
    """Old and new append-only files count. A lone dump would not be loaded."""
    (tmp_path / "appendonlydir").mkdir()
    found = [state_module.data_files(tmp_path)]
    (tmp_path / "dump.rdb").touch()
    found.append(state_module.data_files(tmp_path))
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").touch()
    found.append(state_module.data_files(tmp_path))

    assert found == ["none", "rdb", "aof"]


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (EMPTY, EMPTY),  # A new cluster.
        (PRIMARY, EMPTY),  # A new replica.
        (PRIMARY, state_from(REPLICA)),  # A repeated run.
        (PRIMARY, None),  # A dead replica.
        (None, state_from(REPLICA)),  # A dead primary whose replica still follows it.
        (PRIMARY, {"answers": False, "follows": ADDRESS, "files": "aof"}),  # A replica that crashed.
        (state_from(REPLICA, follows="10.0.0.9"), None),  # The replica becomes the primary of a dead one.
        (state_from(PROMOTED), PRIMARY),  # A promoted replica and its old primary, which wrote nothing since.
        (PRIMARY, state_from(REPLICA, follows="store1")),  # The same primary with another address.
    ],
)
def test_lossless_changes_are_allowed(first: Any, other: Any) -> None:
    """Covers new clusters, repeated runs, dead hosts and a regular promotion."""
    assert refusals_of(first, other) == ([], [])


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (EMPTY, state_from(REPLICA), "n1 has no data, and n2 would lose"),  # The primary's machine was replaced.
        (state_from(PROMOTED, keys=0), state_from(PROMOTED), "n1 has no data, and n2 would lose"),
        (EMPTY, {"answers": False, "follows": "", "files": "aof"}, "n1 has no data, and n2 would lose"),
        (STRANGER, state_from(PROMOTED), "n1 may not have"),  # The old primary returned and n2 was promoted.
        (state_from(PROMOTED), state_from(PROMOTED, history="aaaa", offset=78), "n1 may not have"),  # It wrote after the promotion.
        (state_from(REPLICA), PRIMARY, "REPLICAOF NO ONE"),  # The order changed while both run.
        ({"answers": False, "follows": "", "files": "aof"}, state_from(PROMOTED), "Redis runs on both"),
    ],
)
def test_change_that_would_empty_a_host_is_refused_on_both(first: Any, other: Any, message: str) -> None:
    """Neither host is changed; each message has a fix. redis_discard_data_on permits the loss."""
    of_first, of_other = refusals_of(first, other)

    assert of_first == of_other
    assert message in of_first[0]
    assert "Fix: " in of_first[0]
    assert refusals_of(first, other, discard_on=("n2",)) == ([], [])


def test_unreachable_host_is_unknown() -> None:
    """An empty primary waits for it. A host with data does not follow it."""
    assert "n2, which may have the data, does not answer" in refusals_of(EMPTY, None)[0][0]
    assert "n1 may not have" in refusals_of(None, state_from(PROMOTED))[1][0]


def test_dump_without_an_append_only_file_is_protected() -> None:
    """A foreign Redis with dump.rdb only would start empty with our settings, so it is refused."""
    assert "CONFIG SET appendonly yes" in refusals_of({**STRANGER, "files": "rdb"}, EMPTY)[0][0]
    assert refusals_of({**STRANGER, "files": "rdb", "keys": 0}, EMPTY) == ([], [])
