"""Loss of hosts of the object store, with three real SeaweedFS hosts on loopback and the real JuiceFS as their client."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.object_store_rig import (
    ADDRESSES,
    BUCKET,
    SECRET_KEY,
    VERIFY_BUCKET,
    StoreHost,
    Volume,
    buckets,
    can_bind,
    client,
    effects,
)
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = client.Keys("cluster", SECRET_KEY)
REPAIR = ("lock", "volume.fix.replication -apply", "unlock")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[StoreHost]]:
    """Three running hosts with the buckets of the role."""
    if not can_bind():
        pytest.skip("this account cannot mount in a namespace of its own")
    started = [StoreHost(tmp_path / address, address, tmp_path / "ca") for address in ADDRESSES]
    try:
        for host in started:
            host.start()
        until(
            lambda: not created_problem(started[0]), lambda: started[0].log.read_text(encoding="utf-8", errors="replace")[-2000:], every_s=1
        )
        yield started
    finally:
        for host in started:
            host.kill()


def log_of(host: StoreHost) -> str:
    """Return the end of the log of a host."""
    return host.log.read_text(encoding="utf-8", errors="replace")[-2000:]


def created_problem(host: StoreHost) -> str:
    """Create the buckets as the role does; return the error."""
    try:
        buckets.create_missing(host.shell, [BUCKET, VERIFY_BUCKET], check=False)
    except buckets.StoreError as error:
        return str(error)
    return ""


def cluster_verdicts(host: StoreHost) -> dict[str, str]:
    """Return the verdicts of the role about masters, hosts and copies."""
    records: Any = effects.Verdicts("object_store", host.address)
    effects.check_cluster(host.masters(), records, len(ADDRESSES))
    return {record["check"].removeprefix("object_store."): record["verdict"] for record in records.records}


def wait_for(host: StoreHost, **verdicts: str) -> None:
    """Wait until a host sees the cluster like this."""
    until(lambda: cluster_verdicts(host) == verdicts, lambda: cluster_verdicts(host), every_s=1)


def write_files(folder: Path, prefix: str) -> None:
    """Write files of one and of several blocks."""
    folder.mkdir(exist_ok=True)
    for number, size in enumerate((10, 300_000, 9_000_000)):
        (folder / f"{prefix}{number}").write_bytes(os.urandom(size))


def sums(folder: Path) -> dict[str, str]:
    """Return the checksum of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.long("roles/object_store")
def test_files_survive_the_loss_of_a_host_and_then_of_another(hosts: list[StoreHost], tmp_path: Path) -> None:
    """Files stay readable and writable without one host. After repair and with a new host in its place, the same holds for another one."""
    lost, second, third = hosts
    wait_for(second, masters="pass", hosts="pass", copies="pass")
    volume, files = Volume(tmp_path / "client", lost.etc / "tls/s3-ca.crt"), tmp_path / "files"
    volume.format()
    write_files(files, "before")
    volume.write(files)

    lost.kill()
    lost.destroy_data()

    volume.read(tmp_path / "seen1")
    assert sums(tmp_path / "seen1") == sums(files)
    write_files(files, "during")
    volume.write(files)
    until(
        lambda: cluster_verdicts(second) == {"masters": "fail", "hosts": "fail", "copies": "fail"},
        lambda: cluster_verdicts(second),
        every_s=1,
    )

    until(lambda: (second.shell(*REPAIR), cluster_verdicts(second)["copies"] == "pass")[1], lambda: second.shell(*REPAIR), every_s=1)

    lost.create_data()
    lost.start()
    wait_for(lost, masters="pass", hosts="pass", copies="pass")
    second.kill()

    volume.read(tmp_path / "seen2")
    assert sums(tmp_path / "seen2") == sums(files)
    write_files(files, "after")
    volume.write(files)
    volume.read(tmp_path / "seen3")
    assert sums(tmp_path / "seen3") == sums(files)
    listed = [host.endpoint().call(KEYS, "GET", f"/{BUCKET}", query="list-type=2&prefix=jfs%2Fchunks%2F") for host in (lost, third)]
    assert listed[0].status == listed[1].status == 200
    assert listed[0].body.count(b"<Key>") == listed[1].body.count(b"<Key>") > 0
