"""The script that restores Slurm's accounting, with fake database and systemd programs."""

from __future__ import annotations

import gzip
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = content.roles_dir() / "slurm_accounting" / "files" / "restore.sh"
WHOLE = "CREATE TABLE a (b int);\n-- Dump completed on 2026-11-22  1:00:00\n"
# It records each call; a load into a database listed in `refuse` fails.
PROGRAM = (
    '#!/bin/sh\necho "${0##*/} $*" >> "$NOTES"\n[ "$1" = -e ] || [ "${0##*/}" != mariadb ] || cat > /dev/null\n[ "$1" != "$REFUSE" ]\n'
)


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """Return a folder with two backups; the newest is five hours old."""
    folder = tmp_path / "backups"
    folder.mkdir()
    for name in ("dump-20261101T000000Z", "dump-20261122T000000Z"):
        (folder / f"{name}.sql.gz").write_bytes(gzip.compress(WHOLE.encode()))
    path = folder / "dump-20261122T000000Z.sql.gz"
    old_s = path.stat().st_mtime - 5 * 3600 - 60
    os.utime(path, (old_s, old_s))
    return folder


def run(folder: Path, *, file: str = "", refuse: str = "-") -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Restore; return the result and the calls in order."""
    programs, notes = folder.parent / "bin", folder.parent / "notes"
    programs.mkdir()
    for name in ("mariadb", "mariadb-dump", "systemctl"):
        (programs / name).write_text(PROGRAM)
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "NOTES": str(notes), "REFUSE": refuse}
    argv = ["/bin/sh", str(SCRIPT), "slurmdbd.service", "acct", file, str(folder)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done, notes.read_text().splitlines() if notes.exists() else []


def test_newest_backup_is_used_and_its_age_printed(backups: Path) -> None:
    """The backup timer pauses meanwhile; afterwards all services run."""
    done, calls = run(backups)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"restored {backups}/dump-20261122T000000Z.sql.gz, which is 5 hours old"
    assert calls[0] == "systemctl stop primus-slurm-accounting-backup.timer primus-slurm-accounting-backup.service slurmdbd.service"
    assert calls[-2:] == ["systemctl start slurmdbd.service", "systemctl start primus-slurm-accounting-backup.timer"]
    assert len(list(backups.glob("before-restore-*.sql.gz"))) == 1


def test_backup_that_does_not_load_changes_nothing(backups: Path) -> None:
    """It is loaded into a second database first; slurmdbd continues with the old one."""
    done, calls = run(backups, refuse="acct.restore")

    assert done.returncode == 1
    assert "does not load. Fix:" in done.stderr
    assert not [call for call in calls if "DROP DATABASE `acct`" in call]
    assert "systemctl start slurmdbd.service" in calls


def test_slurmdbd_does_not_start_with_a_partial_database(backups: Path) -> None:
    """It would create empty tables and use them. The message has the fix."""
    done, calls = run(backups, refuse="acct")

    assert done.returncode == 1
    assert "slurmdbd.service stays stopped; the former data are in" in done.stderr
    assert "systemctl start slurmdbd.service" not in calls
    assert "systemctl start primus-slurm-accounting-backup.timer" in calls


def test_interrupted_restore_can_be_repeated(backups: Path) -> None:
    """The database may be missing then; it is created before it is moved aside."""
    _, calls = run(backups)
    names = [call for call in calls if call.startswith("mariadb")]

    assert names[0] == "mariadb -e CREATE DATABASE IF NOT EXISTS `acct`"
    assert names[1].startswith("mariadb-dump")


@pytest.mark.parametrize("file", ["/nowhere/dump.sql.gz", "torn"])
def test_missing_or_damaged_backup_stops_no_service(file: str, backups: Path) -> None:
    """It is refused first."""
    (backups / "torn").write_bytes(gzip.compress(b"CREATE TABLE a"))
    done, calls = run(backups, file=file if file.startswith("/") else str(backups / file))

    assert done.returncode == 1
    assert "Fix:" in done.stderr
    assert calls == []
