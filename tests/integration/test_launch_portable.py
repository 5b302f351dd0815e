"""The zipapp of primus-cli, as it runs on nodes and in containers with only Python."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch import zipapp_file
from tests.integration.launch_cli_rig import ROOT

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the zipapp with the training programs."""
    path = tmp_path_factory.mktemp("program") / "primus-cli"
    zipapp_file.write_zipapp(path, workloads=ROOT / "workloads")
    return path


def python(version: str) -> str:
    """Return a Python of a version, or skip the test."""
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False, timeout=120).returncode:
        pytest.skip(f"this machine has no python{version}")
    return found


def run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its own home and without PYTHONPATH."""
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], **more}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=90)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_runs_a_program_with_hooks_on_every_python(program: Path, tmp_path: Path, version: str) -> None:
    """Plan, hooks, program, rank files and exit code, with Python 3.9 and newer."""
    interpreter = python(version)
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "10_h.py").write_text("def hook(plan):\n    return {'env': {'GOT': plan['task']}}\n")
    script = tmp_path / "p.py"
    script.write_text("import os, sys\nprint(os.environ['GOT'], os.environ['CUBLAS_WORKSPACE_CONFIG'])\nsys.exit(6)\n")
    options = ["--output", "run", "direct", "--single", "--python", interpreter, "--script", str(script), "--"]
    done = run([interpreter, "-I", str(program), *options], tmp_path, PRIMUS_DETERMINISTIC="1")

    assert done.returncode == 6, done.stdout + done.stderr
    assert "script :4096:8" in done.stdout
    assert json.loads((tmp_path / "run/logs/rank-00000.json").read_text())["exit_code"] == 6


def test_the_training_programs_are_unpacked_once_and_only_for_a_run(program: Path, tmp_path: Path) -> None:
    """A plan writes nothing; a run unpacks into the user's cache, under a name with the digest."""
    words = ["direct", "--single", "--python", "python3", "--", "train", "pretrain", "--print-settings"]
    planned = run(["python3", str(program), "--dry-run", *words], tmp_path)
    before = list(tmp_path.iterdir())
    done = run(["python3", str(program), "--output", "run", *words], tmp_path)
    (folder,) = (tmp_path / ".cache" / "primus").glob("workloads-*")

    assert planned.returncode == 0, planned.stderr
    assert f"{folder}/workloads/train/pretrain.py" in planned.stdout
    assert before == []
    assert (folder / "workloads" / "train" / "pretrain.py").read_bytes() == (ROOT / "workloads" / "train" / "pretrain.py").read_bytes()
    assert (tmp_path / "run" / "plan.json").is_file(), done.stderr


def test_a_zipapp_without_training_programs_is_an_error(tmp_path: Path) -> None:
    """It still runs the user's own programs."""
    bare = tmp_path / "launch.pyz"
    zipapp_file.write_zipapp(bare)
    done = run(["python3", str(bare), "direct", "--single", "--", "train", "pretrain"], tmp_path)

    assert done.returncode == 3
    assert "contains no training programs\n  fix: pass --workloads" in done.stderr


def test_without_home_a_folder_of_another_account_is_an_error(program: Path, tmp_path: Path) -> None:
    """A systemd unit of root has no HOME, and another account could create the folder in /tmp."""
    words = ["env", "--unset=HOME", "python3", str(program), "--dry-run", "direct", "--single", "--", "train", "pretrain"]
    planned = run(words, tmp_path)

    assert planned.returncode == 0, planned.stderr
    assert f"{pwd.getpwuid(os.geteuid()).pw_dir}/.cache/primus/workloads-" in planned.stdout


def test_a_closed_pipe_gives_no_traceback(program: Path, tmp_path: Path) -> None:
    """`primus-cli --help | head -1` ends without a message."""
    done = run(["bash", "-c", f"python3 {program} config show --json | head -1"], tmp_path)

    assert done.stderr == ""
