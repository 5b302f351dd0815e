"""primus_bootstrap.launch.zipapp_file: the zipapp for hosts, with real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch import zipapp_file
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_it_runs_with_only_python(version: str, tmp_path: Path) -> None:
    """-I excludes the controller's packages."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False, timeout=120).returncode:
        pytest.skip(f"this machine has no python{version}")
    program = tmp_path / "launch.pyz"
    zipapp_file.write_zipapp(program)
    root = expand("mi300x-roce", tmp_path / "root")
    command = [python, "-I", str(program), "host-env", "--sysfs", str(root), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert json.loads(done.stdout)["model"] == "MI300X"
    assert done.stderr == ""


def test_an_unknown_program_is_an_error_with_the_choices(tmp_path: Path) -> None:
    """The fix lists the programs."""
    program = tmp_path / "launch.pyz"
    zipapp_file.write_zipapp(program)
    python = shutil.which("python3") or "python3"
    done = subprocess.run([python, str(program), "hostenv"], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 2
    assert "host-env" in done.stderr


def test_every_module_imports_from_the_zipapp(tmp_path: Path) -> None:
    """The zipapp contains all imported modules, without pip packages."""
    program = tmp_path / "launch.pyz"
    zipapp_file.write_zipapp(program)
    code = (
        "import importlib, sys, zipfile\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "names = [name[:-3].replace('/', '.') for name in zipfile.ZipFile(sys.argv[1]).namelist()]\n"
        "names = [name for name in names if name.startswith('primus_bootstrap.') and '.data.' not in name and '__' not in name]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('primus_bootstrap.')}), len(names))\n"
    )
    command = [shutil.which("python3") or "python3", "-I", "-S", "-c", code, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    *packages, modules = done.stdout.split()

    assert done.stderr == ""
    assert packages == ["primus_bootstrap.core", "primus_bootstrap.launch"]
    assert int(modules) > 100
