"""The role `primus_watch`: its files agree with ssh, sudo, systemd and the programs."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from pathlib import Path


def test_sudo_reads_the_rule(tmp_path: Path) -> None:
    """Visudo accepts the file."""
    program = shutil.which("visudo", path="/usr/sbin:/sbin:/usr/bin")
    if program is None:
        pytest.skip("visudo is not installed on this machine")
    path = tmp_path / "rule"
    path.write_text(render("primus_watch", "sudoers.j2"))

    assert subprocess.run([program, "-cf", str(path)], capture_output=True, check=False, timeout=120).returncode == 0
