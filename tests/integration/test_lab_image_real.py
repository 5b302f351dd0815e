"""Names of images, and the lock that keeps two builds apart."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.image import file_lock
from primus_bootstrap.lab.lab_values import LabError

if TYPE_CHECKING:
    from pathlib import Path


HOLDER = """
import sys
from pathlib import Path
from primus_bootstrap.lab.image import file_lock
with file_lock(Path(sys.argv[1]), timeout_s=5, say=print, what="it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_waits_says_so_and_goes_on(tmp_path: Path) -> None:
    """A lock that another process holds is waited for with one message and up to a limit; a killed holder frees it."""
    said: list[str] = []
    argv = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LabError) as caught, file_lock(tmp_path / "lock", timeout_s=0.5, say=said.append, what="the image"):
            pass
        other.kill()
    with file_lock(tmp_path / "lock", timeout_s=0, say=said.append, what="the image"):
        pass

    assert said == ["waiting for another process that works on the image"]
    assert "another process has been working on the image" in caught.value.what
