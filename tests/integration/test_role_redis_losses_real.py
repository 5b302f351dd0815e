"""Protection against data loss in the group `redis`: the guard of the unit, and discarded data."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path

FILES = content.roles_dir() / "redis" / "files"


@pytest.mark.parametrize(
    ("there", "held", "starts"),
    [
        (["appendonlydir"], True, True),
        (["appendonly.aof"], True, True),
        ([], False, True),
        ([], True, False),
        (["dump.rdb"], False, False),
        (["dump.rdb", "appendonly.aof"], False, True),
    ],
)
def test_primary_that_lost_its_data_does_not_start(tmp_path: Path, there: list[str], *, held: bool, starts: bool) -> None:
    """An unmounted disk, or a dump that would not be loaded, stops an empty start, with a fix."""
    data, mark = tmp_path / "data", tmp_path / "held-data"
    data.mkdir()
    for name in there:
        (data / name).touch()
    if held:
        mark.touch()
    done = subprocess.run(["/bin/sh", FILES / "start_guard.sh", data, mark], capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode == 0) is starts
    assert ("Fix: " in done.stderr) is not starts


def test_discarded_data_is_moved_aside(tmp_path: Path) -> None:
    """Before a host with data follows another, its server stops and its files are moved."""
    for name, text in {"systemctl": 'echo "$@" >> calls', "install": 'for last; do :; done; mkdir -p "$last"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    data = tmp_path / "data"
    (data / "appendonlydir").mkdir(parents=True)
    (data / "dump.rdb").write_text("kept", encoding="utf-8")
    command = ["/bin/sh", str(FILES / "set_aside.sh"), "redis-server.service", str(data)]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=path, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    aside = next(data.glob("before-following-*"))

    assert sorted(path.name for path in aside.iterdir()) == ["appendonlydir", "dump.rdb"]
    assert [path.name for path in data.iterdir()] == [aside.name]
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "stop redis-server.service\n"
    assert str(aside) in done.stdout
