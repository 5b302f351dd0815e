"""Test the file lock of the image build."""

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
with file_lock(Path(sys.argv[1]), timeout_s=5, progress=print, what="it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_waits_up_to_its_time_limit(tmp_path: Path) -> None:
    """A lock that another process holds is reported once and fails after the time limit. Killing the holder releases it."""
    messages: list[str] = []
    argv = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LabError) as caught, file_lock(tmp_path / "lock", timeout_s=0.5, progress=messages.append, what="the image"):
            pass
        other.kill()
    with file_lock(tmp_path / "lock", timeout_s=0, progress=messages.append, what="the image"):
        pass

    assert messages == ["waiting for another process that works on the image"]
    assert "another process has been working on the image" in caught.value.what
