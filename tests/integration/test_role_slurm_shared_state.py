"""The script that creates the controllers' shared state folder, run on a separate file system with a fake account `slurm`."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = content.roles_dir() / "slurm" / "files" / "create_shared_state.sh"
UID = 64030
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other accounts")


def run(tmp_path: Path, *, mounted: str = "/shared", how: str = "apply") -> subprocess.CompletedProcess[str]:
    """Run it with this id of slurm and a folder on a separate file system."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    stat = f'#!/bin/sh\n[ "$2" != %m ] || {{ echo {mounted}; exit; }}\nexec /usr/bin/stat "$@"\n'
    install = f'#!/bin/sh\nfor last; do :; done\nmkdir -p "$last" && chown {UID}:{UID} "$last" && chmod 0700 "$last"\n'
    for name, text in {"id": f"#!/bin/sh\necho {UID}\n", "stat": stat, "install": install}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    argv = ["/bin/sh", str(SCRIPT), str(tmp_path / "state"), how]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_folder_is_created_once(tmp_path: Path) -> None:
    """It belongs to slurm. Check mode changes nothing; the second run prints nothing."""
    looked = run(tmp_path, how="check")
    created = (tmp_path / "state").exists()
    first, second = run(tmp_path), run(tmp_path)

    assert (looked.stdout, created) == ("changed\n", False)
    assert [(done.returncode, done.stdout) for done in (first, second)] == [(0, "changed\n"), (0, "")]
    assert (tmp_path / "state" / "slurmctld").stat().st_uid == UID


def test_folder_with_another_owner_id_is_refused(tmp_path: Path) -> None:
    """The account slurm has a different id here, and the first controller would lose its state. The error has both ids."""
    folder = tmp_path / "state" / "slurmctld"
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, 992, 992)
    done = run(tmp_path)

    assert done.returncode == 1
    assert "belongs to uid 992, and slurm is uid 64030 here. Fix:" in done.stderr
    assert folder.stat().st_uid == 992


def test_folder_of_root_changes_its_owner(tmp_path: Path) -> None:
    """A folder that an administrator created becomes slurm's."""
    (tmp_path / "state" / "slurmctld").mkdir(parents=True)

    assert run(tmp_path).stdout == "changed\n"
    assert (tmp_path / "state" / "slurmctld").stat().st_uid == UID


def test_local_disk_is_refused(tmp_path: Path) -> None:
    """Without the shared file system each controller would have its own state."""
    done = run(tmp_path, mounted="/")

    assert done.returncode == 1
    assert "own disk" in done.stderr
