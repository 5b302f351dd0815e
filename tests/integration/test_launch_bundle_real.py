"""primus_bootstrap.launch.bundle: the one file that goes to hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch import bundle
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_it_runs_with_nothing_but_python(version: str, tmp_path: Path) -> None:
    """No package of the controller is needed; -I keeps them out."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False, timeout=120).returncode:
        pytest.skip(f"this machine has no python{version}")
    program = tmp_path / "launch.pyz"
    bundle.write_bundle(program)
    root = expand("mi300x-roce", tmp_path / "root")
    command = [python, "-I", str(program), "host-env", "--sysfs", str(root), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert json.loads(done.stdout)["model"] == "MI300X"
    assert done.stderr == ""


def test_an_unknown_program_is_refused_with_the_choices(tmp_path: Path) -> None:
    """A word that is no program names those that are."""
    program = tmp_path / "launch.pyz"
    bundle.write_bundle(program)
    python = shutil.which("python3") or "python3"
    done = subprocess.run([python, str(program), "hostenv"], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 2
    assert "host-env" in done.stderr
