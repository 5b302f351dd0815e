"""Plans and run folders for the tests of snapshots, replays and their differences."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.run_plan import Plan, Variable
from primus_bootstrap.launch.run_topology import Topology
from primus_bootstrap.launch.settings.layered_settings import Setting

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = {"HF_TOKEN": "plain-word-of-a-secret", "PRIVATE_KEY": "first line of it\nsecond line of it", "DB_PASSWORD": "pa55-w0rd"}


def git(folder: Path, *words: str) -> str:
    """Run git without the user's own settings."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def project(folder: Path) -> Path:
    """Create a git repository with a program and its configuration."""
    folder.mkdir()
    (folder / "train.py").write_text("print('training')\n")
    (folder / "x.yaml").write_text("train: {steps: 4}\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def plan(folder: Path, **changes: Any) -> Plan:
    """Return a plan of that program."""
    made = Plan(
        runtime="direct",
        task="script",
        words=("--config", "x.yaml"),
        command=("direct", "--output", "A", "--script", "train.py", "--", "--config", "x.yaml"),
        run_dir=str(folder / "A"),
        cwd=str(folder),
        python=sys.executable,
        program=(sys.executable, str(folder / "train.py")),
        program_arguments=("--config", "x.yaml"),
        environment=(Variable("NCCL_DEBUG", "WARN", "profile base"), Variable("RUN_DIR", str(folder / "A"), "run")),
        inherited={"PATH": "/usr/bin:/bin", "LANG": "C", **SECRETS},
        topology=Topology(nproc=2),
        settings=(
            Setting("main.output", "A", "flag --output"),
            Setting("direct.nproc", 2, "flag --nproc"),
            Setting("direct.env", {}, "built-in"),
        ),
    )
    return replace(made, **changes)
