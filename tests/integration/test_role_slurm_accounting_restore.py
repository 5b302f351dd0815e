"""The script that restores Slurm's accounts, with a database server and a systemd that are played: what happens in which order."""

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
# It notes each call; a load into a database whose name is in `refuse` fails.
PROGRAM = (
    '#!/bin/sh\necho "${0##*/} $*" >> "$NOTES"\n[ "$1" = -e ] || [ "${0##*/}" != mariadb ] || cat > /dev/null\n[ "$1" != "$REFUSE" ]\n'
)


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """Return a folder with two backups; the newest was taken five hours ago."""
    folder = tmp_path / "backups"
    folder.mkdir()
    for name in ("dump-20261101T000000Z", "dump-20261122T000000Z"):
        (folder / f"{name}.sql.gz").write_bytes(gzip.compress(WHOLE.encode()))
    path = folder / "dump-20261122T000000Z.sql.gz"
    old_s = path.stat().st_mtime - 5 * 3600 - 60
    os.utime(path, (old_s, old_s))
    return folder


def run(folder: Path, *, file: str = "", refuse: str = "-") -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Restore; return how it ended and the calls of programs, in their order."""
    programs, notes = folder.parent / "bin", folder.parent / "notes"
    programs.mkdir()
    for name in ("mariadb", "mariadb-dump", "systemctl"):
        (programs / name).write_text(PROGRAM)
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "NOTES": str(notes), "REFUSE": refuse}
    argv = ["/bin/sh", str(SCRIPT), "slurmdbd.service", "acct", file, str(folder)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done, notes.read_text().splitlines() if notes.exists() else []


def test_the_newest_backup_is_named_with_its_age(backups: Path) -> None:
    """No backup of the timer comes in between, and everything runs again afterwards."""
    done, calls = run(backups)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"restored {backups}/dump-20261122T000000Z.sql.gz, which is 5 hours old"
    assert calls[0] == "systemctl stop primus-slurm-accounting-backup.timer primus-slurm-accounting-backup.service slurmdbd.service"
    assert calls[-2:] == ["systemctl start slurmdbd.service", "systemctl start primus-slurm-accounting-backup.timer"]
    assert len(list(backups.glob("before-restore-*.sql.gz"))) == 1


def test_a_backup_that_does_not_load_leaves_the_database_as_it_is(backups: Path) -> None:
    """It is tried beside the database, which is not touched, and slurmdbd goes on with it."""
    done, calls = run(backups, refuse="acct.restore")

    assert done.returncode == 1
    assert "does not load. Fix:" in done.stderr
    assert not [call for call in calls if "DROP DATABASE `acct`" in call]
    assert "systemctl start slurmdbd.service" in calls


def test_on_half_a_database_slurmdbd_does_not_start(backups: Path) -> None:
    """It would fill in empty tables and account into them; the way back is named."""
    done, calls = run(backups, refuse="acct")

    assert done.returncode == 1
    assert "slurmdbd.service stays stopped; the former data are in" in done.stderr
    assert "systemctl start slurmdbd.service" not in calls
    assert "systemctl start primus-slurm-accounting-backup.timer" in calls


def test_a_run_that_was_cut_off_can_be_repeated(backups: Path) -> None:
    """The database may be gone by then: it is there before it is set aside."""
    _, calls = run(backups)
    names = [call for call in calls if call.startswith("mariadb")]

    assert names[0] == "mariadb -e CREATE DATABASE IF NOT EXISTS `acct`"
    assert names[1].startswith("mariadb-dump")


@pytest.mark.parametrize("file", ["/nowhere/dump.sql.gz", "torn"])
def test_a_backup_that_is_missing_or_torn_stops_nothing(file: str, backups: Path) -> None:
    """It is refused before the first daemon is stopped."""
    (backups / "torn").write_bytes(gzip.compress(b"CREATE TABLE a"))
    done, calls = run(backups, file=file if file.startswith("/") else str(backups / file))

    assert done.returncode == 1
    assert "Fix:" in done.stderr
    assert calls == []
