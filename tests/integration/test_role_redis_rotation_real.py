"""Change of the password and of the certificates of a group with automatic failover: three real Redis servers and sentinels on loopback."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.redis_rig import ADDRESSES, PASSWORD, Mount, RedisGroup, Writer
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEW = "changed-9876543210-abc"
LIMIT_S = 30.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RedisGroup]:
    """Three hosts; the first is the primary."""
    found = RedisGroup(tmp_path / "redis")
    yield found
    found.stop()


def give_new_password(group: RedisGroup) -> list[bool]:
    """Give the password to Redis and to the running sentinels, in the order of the role; return which sentinels it changed."""
    for host in group.hosts.values():
        host.write_password(NEW)
    return [host.give_sentinel_password(action) for action in ("accept", "send") for host in group.hosts.values()]


def test_primary_is_replaced_while_only_one_sentinel_has_started_with_the_new_password(group: RedisGroup) -> None:
    """Sentinels that were not restarted yet accept and send the new password, so a run that ends between two restarts is no danger."""
    first, second, third = group.hosts.values()
    changed = [give_new_password(group), give_new_password(group)]
    said = second.restart_sentinel()
    first.kill("redis", "sentinel")
    until(lambda: third.sentinel("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "primary").split()[0] != first.address, "a new primary", limit_s=60)

    assert changed == [[True] * 6, [False] * 6]
    assert said == ""


@pytest.mark.fault
def test_files_are_written_while_the_password_and_the_certificates_change(tmp_path: Path, group: RedisGroup) -> None:
    """No write fails or waits for 30 s. The old password ends, no Redis was restarted, and the primary can be switched afterwards."""
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("this host cannot mount: /dev/fuse is missing or not writable")
    mount = Mount(tmp_path / "mount", group)
    writers = [Writer(mount.path, name) for name in ("a", "b", "c")]
    hosts = group.hosts.values()
    redis = [host.processes["redis"].pid for host in hosts]
    try:
        for writer in writers:
            writer.start()
        until(lambda: all(len(writer.acknowledged) > 50 for writer in writers), "150 files")
        give_new_password(group)
        certificates = [host.served_certificate() for host in hosts]
        for host in hosts:
            host.sign_certificate(tmp_path / "redis/ca")
        waited = [host.restart_sentinel() for host in hosts]
        mount.read_password(NEW)
        time.sleep(1.1)
        removed = [host.remove_old_password() for host in hosts]
        changed = time.monotonic()
        until(lambda: all(writer.acknowledged[-1][0] > changed + 1 for writer in writers), "writes with the new password")
        said = group.hosts[ADDRESSES[0]].switch_primary()
        switched = time.monotonic()
        until(lambda: all(writer.acknowledged[-1][0] > switched + 1 for writer in writers), "writes on the new primary")
    finally:
        for writer in writers:
            writer.done.set()
            writer.join()
        names = [name for writer in writers for _, name in writer.acknowledged]
        lost = [name for name in names if not (mount.path / name).exists()]
        mount.stop()
    gaps = [max(later - sooner for (sooner, _), (later, _) in zip(w.acknowledged, w.acknowledged[1:], strict=False)) for w in writers]

    assert waited == [""] * 3
    assert said.startswith("the primary is")
    assert removed == [True] * 3
    assert [host.redis("PING", password=PASSWORD) for host in hosts if "WRONGPASS" not in host.redis("PING", password=PASSWORD)] == []
    assert [host.served_certificate() for host in hosts if host.served_certificate() in certificates] == []
    assert [host.processes["redis"].pid for host in hosts if host.processes["redis"].poll() is None] == redis
    assert lost == []
    assert max(gaps) < LIMIT_S
    assert [error for writer in writers for error in writer.errors] == []
