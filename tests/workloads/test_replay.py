"""primus-cli with the real trainer on the CPU: replay of a snapshot, and the diagnosis of an injected fault."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long("workloads", "primus_bootstrap/launch")
ROOT = Path(__file__).resolve().parents[2]
NOT_FINITE = 76


def primus_cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run primus-cli in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "primus_bootstrap.launch", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=180)


def steps(run_dir: Path) -> list[tuple[int, float, float]]:
    """Return step, loss and gradient norm of every step."""
    lines = [json.loads(line) for line in (run_dir / "steps.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def failure(run_dir: Path) -> dict[str, Any]:
    """Return the diagnosis that the launcher wrote."""
    return dict(json.loads((run_dir / "failure.json").read_text()))


@pytest.mark.timeout(400)
def test_a_replay_has_bit_identical_losses(tmp_path: Path) -> None:
    """From another folder, with a changed configuration file and another environment."""
    folder = tmp_path / "job"
    folder.mkdir()
    shutil.copy(ROOT / "workloads/presets/debug-dense.yaml", folder / "x.yaml")
    words = (
        "--nproc",
        "2",
        "--python",
        sys.executable,
        "--env",
        "SOME_MODE=first",
        "--",
        "train",
        "pretrain",
        "--config",
        "x.yaml",
        "train.steps=4",
    )
    first = primus_cli(folder, "direct", "--output", "A", *words)
    assert first.returncode == 0, first.stdout + first.stderr
    (folder / "x.yaml").write_text("model: {layers: 1}\n")
    replay = primus_cli(tmp_path, "--replay", str(folder / "A"), "--output", str(tmp_path / "B"))

    assert replay.returncode == 0, replay.stdout + replay.stderr
    assert steps(tmp_path / "B") == steps(folder / "A")
    assert len(steps(folder / "A")) == 4
    assert "x.yaml has changed; the copy in the snapshot is used" in replay.stderr


@pytest.mark.timeout(400)
def test_the_diagnosis_names_the_rank_with_a_nan_loss(tmp_path: Path) -> None:
    """Both ranks stop at the same step."""
    words = ("--config", "debug-dense", "train.steps=9", "drill.kind=nan", "drill.step=3", "drill.rank=1")
    done = primus_cli(tmp_path, "direct", "--output", "A", "--nproc", "2", "--python", sys.executable, "--", "train", "pretrain", *words)

    assert done.returncode == NOT_FINITE, done.stdout + done.stderr
    found = failure(tmp_path / "A")
    assert (found["cause"]["name"], [item["rank"] for item in found["suspects"]]) == ("not_finite", [1])
    assert "cause: the loss or a gradient is not finite" in done.stdout
