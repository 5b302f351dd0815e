"""The lock of a cluster, with real processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import LockedError
from primus_bootstrap.engine.lock import children_lock, cluster_lock, read_holder

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys, time
from pathlib import Path
from primus_bootstrap.engine.lock import cluster_lock
with cluster_lock(Path(sys.argv[1]), verb="apply", run="r1"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_is_free_after_its_holder_died(tmp_path: Path) -> None:
    """While the holder lives, a second process gets an error with its pid."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LockedError, match=f"pid {holder.pid}"), cluster_lock(tmp_path, verb="apply", run="r2"):
            pass
        holder.kill()

    with cluster_lock(tmp_path, verb="apply", run="r2"):
        found = read_holder(tmp_path)
    assert found is not None
    assert found.run == "r2"


def test_a_new_run_waits_for_the_processes_of_a_dead_holder(tmp_path: Path) -> None:
    """It waits until the last Ansible process has ended, but not longer than `wait_s`."""
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", script, str(children_lock(tmp_path))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(LockedError, match=r"still running after 0 s"), cluster_lock(tmp_path, verb="apply", run="r", wait_s=0.2):
            pass
        began = time.monotonic()
        threading.Timer(1.0, child.stdin.close).start()
        with cluster_lock(tmp_path, verb="apply", run="r"):
            waited = time.monotonic() - began

    assert 1.0 <= waited < 10


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": 1}', '{"pid":1,"user":"u","host":"h","verb":"v","run":"r","since":"soon"}'])
def test_a_lock_with_a_damaged_holder_is_still_locked(tmp_path: Path, text: str) -> None:
    """The error message has no holder then."""
    with cluster_lock(tmp_path, verb="apply", run="r1"):
        (tmp_path / "lock").write_text(text, encoding="utf-8")

        assert read_holder(tmp_path) is None
        with (
            pytest.raises(LockedError, match="another run of this cluster is starting or ending"),
            cluster_lock(tmp_path, verb="apply", run="r2"),
        ):
            pass
