"""The backup and restore programs of Redis, run with fake Redis programs."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from pathlib import Path

RESTORE = content.roles_dir() / "redis" / "files" / "restore.sh"


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which redis-cli copies $BYTES bytes and each backup has $KEYS keys."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        # As redis-check-rdb 7.0.15 prints it.
        "redis-check-rdb": 'echo "[offset 0] Checking RDB file $1"; echo "[info] $KEYS keys read"; [ "$KEYS" != damaged ]',
        "redis-cli": 'for last; do :; done; head -c "$BYTES" /dev/zero > "$last"; [ -z "$BREAKS" ]',
    }
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "BYTES": "1000", "KEYS": "7"}


def put(folder: Path, name: str, size: int = 1000, age_h: float = 0) -> Path:
    """Write a backup of this size and age."""
    path = folder / f"dump-{name}.rdb"
    path.write_bytes(b"0" * size)
    at = time.time() - age_h * 3600
    os.utime(path, (at, at))
    return path


def back_up(tmp_path: Path, programs: dict[str, str], **environment: str) -> tuple[int, str, list[str]]:
    """Run the backup, keeping two; return status, errors and the remaining names."""
    script = tmp_path / "backup.sh"
    script.write_text(render("redis", "backup.sh.j2", redis_backup_dir=str(tmp_path), redis_backup_keep=2), encoding="utf-8")
    environment = {**programs, **environment}
    done = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr, sorted(path.name for path in tmp_path.glob("*dump-*")) + [p.name for p in tmp_path.glob(".new*")]


def restore(tmp_path: Path, programs: dict[str, str], named: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Ask for the backup to restore; the default limit of lost time is 24 hours."""
    words = ["/bin/sh", str(RESTORE), "redis-server.service", str(tmp_path / "data"), named, str(tmp_path), "24", "1800", "look"]
    return subprocess.run(words, env={**programs, **environment}, capture_output=True, text=True, check=False, timeout=120)


def test_oldest_backup_is_removed_after_a_new_one(tmp_path: Path, programs: dict[str, str]) -> None:
    """Two remain, including the new one."""
    for name in ("20250101T000000Z", "20250102T000000Z"):
        put(tmp_path, name)
    status, _, left = back_up(tmp_path, programs)

    assert status == 0
    assert left[0] == "dump-20250102T000000Z.rdb"
    assert len(left) == 2


def test_backup_of_an_emptied_redis_removes_no_other(tmp_path: Path, programs: dict[str, str]) -> None:
    """If it is much smaller than an earlier one, all stay and the unit fails with a fix."""
    for name in ("20250101T000000Z", "20250102T000000Z"):
        put(tmp_path, name)
    status, complaint, left = back_up(tmp_path, programs, BYTES="90")

    assert status == 1
    assert "the backup has 90 bytes, an earlier one 1000" in complaint
    assert "Fix: " in complaint
    assert len(left) == 3


@pytest.mark.parametrize("fault", [{"BREAKS": "yes"}, {"KEYS": "damaged"}])
def test_incomplete_copy_is_removed(tmp_path: Path, programs: dict[str, str], fault: dict[str, str]) -> None:
    """After an aborted or damaged copy the old backups stay and the unit fails."""
    put(tmp_path, "20250101T000000Z")
    status, _, left = back_up(tmp_path, programs, **fault)

    assert status != 0
    assert left == ["dump-20250101T000000Z.rdb"]


def test_restore_reports_its_backup(tmp_path: Path, programs: dict[str, str]) -> None:
    """It uses the newest one and prints name, age and number of keys first."""
    put(tmp_path, "20250101T000000Z", age_h=8)
    newest = put(tmp_path, "20250102T000000Z", age_h=3.5)
    done = restore(tmp_path, programs)

    assert done.stdout == f"{newest}, 3 h old, 7 keys\n"


def test_old_or_empty_backup_must_be_named(tmp_path: Path, programs: dict[str, str]) -> None:
    """A loss of more than a day, or of everything, needs an explicit name."""
    old = put(tmp_path, "20250101T000000Z", age_h=30)
    refused = restore(tmp_path, programs)
    put(tmp_path, "20250102T000000Z")
    empty = restore(tmp_path, programs, KEYS="0")

    assert (refused.returncode, empty.returncode) == (1, 1)
    assert "30 h old, 7 keys, and more than 24 h would be lost. Fix: to use it anyway" in refused.stderr
    assert "it is empty. Fix: set redis_restore_file to an older one" in empty.stderr
    assert str(old) in empty.stderr
    assert restore(tmp_path, programs, str(old), KEYS="0").returncode == 0


def test_damaged_or_missing_backup_is_refused(tmp_path: Path, programs: dict[str, str]) -> None:
    """No service is stopped for it."""
    none = restore(tmp_path, programs)
    put(tmp_path, "20250101T000000Z")
    damaged = restore(tmp_path, programs, KEYS="damaged")

    assert "there is no backup in" in none.stderr
    assert "is damaged. Fix: restore an older" in damaged.stderr
