"""Hosts that join and leave a group with automatic failover: real Redis servers and sentinels on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.redis_rig import ADDRESSES, RedisGroup
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Elections take longer than their limits on a busy machine.
pytestmark = pytest.mark.fault
NEW = "127.0.0.94"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RedisGroup]:
    """Three hosts; the first is the primary."""
    found = RedisGroup(tmp_path / "redis")
    yield found
    found.stop()


def test_new_host_is_a_replica_and_an_old_one_is_forgotten(group: RedisGroup) -> None:
    """A host joins without a change of the others. The primary hands over and leaves, the sentinels forget it, and failover works."""
    first = group.hosts[ADDRESSES[0]]
    first.redis("SET", "key", "value")
    new = group.join(NEW)
    until(group.ready, "four sentinels and three replicas")
    joined = new.replication()["role"], new.redis("GET", "key")
    waited = group.leave(ADDRESSES[0])
    until(group.ready, "three sentinels and two replicas")
    known = "".join(
        host.sentinel("SENTINEL", question, "primary") for host in group.hosts.values() for question in ("SENTINELS", "REPLICAS")
    )
    primary = new.primary()
    group.hosts[primary].kill("redis", "sentinel")
    others = [host for address, host in group.hosts.items() if address != primary]
    until(lambda: {host.primary() for host in others} <= {host.address for host in others}, "another primary", limit_s=60)
    kept = [host.redis("GET", "key") for host in others]

    assert joined == ("slave", "value")
    assert waited == [""] * 3
    assert primary != first.address
    assert first.address not in known
    assert kept == ["value"] * 2


def test_primary_moves_to_a_host_that_joined_since_the_last_apply(group: RedisGroup) -> None:
    """The scripts of the other hosts do not have its address: a host that leaves finds it among its replicas."""
    new = group.join(NEW)
    new.redis("CONFIG", "SET", "replica-priority", "1")  # preferred
    until(group.ready, "four sentinels and three replicas")
    first = group.hosts[ADDRESSES[0]]
    until(lambda: "slave-priority\n1\n" in first.sentinel("SENTINEL", "REPLICAS", "primary"), "its priority", limit_s=60)

    assert first.switch_primary() == f"the primary is {NEW} now"
