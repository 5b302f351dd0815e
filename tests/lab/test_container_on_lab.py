"""Test `primus-cli container` with this machine's engine and the image of a lab host."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import ROOT, RunningLab, engine_argv, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

PACKAGES = "/opt/packages"


def engine_output(*words: str) -> str:
    """Return the output of the engine."""
    return subprocess.run([*engine_argv(), *words], capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.fixture
def image(lab: RunningLab) -> Iterator[str]:
    """The image of a host with this machine's Python; the lab's containers must not change."""
    if engine_argv()[0] == "sudo":
        pytest.skip("the lab's image belongs to root's engine, and this account's engine has another one")
    torch = importlib.util.find_spec("torch")
    if torch is None or sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11, and torch is not installed here for it")
    before = engine_output("ps", "--filter", f"label=primus.lab={lab.name}", "--format", "{{.ID}} {{.Names}}")
    assert "bookworm" in lab.sh("node1", "cat /etc/os-release")
    yield engine_output("inspect", "--format", "{{.Image}}", lab.container("node1"))

    assert engine_output("ps", "--filter", f"label=primus.lab={lab.name}", "--format", "{{.ID}} {{.Names}}") == before


def words(folder: Path, *runtime: str, settings: tuple[str, ...] = ()) -> list[str]:
    """Return the command line of a run with two ranks."""
    train = ["train", "pretrain", "--config", "debug-dense", *settings]
    return [sys.executable, "-m", "primus_bootstrap.launch", "--output", str(folder), *runtime, "--nproc", "2", "--", *train]


def inside(image: str) -> tuple[str, ...]:
    """Return the options of a run in an image with this machine's torch."""
    torch = importlib.util.find_spec("torch")
    assert torch
    packages = Path(str(torch.origin)).parents[1]
    volume = f"{packages}:{PACKAGES}:ro"
    return ("container", "--engine", engine_argv()[-1], "--image", image, "--volume", volume, "--env", f"PYTHONPATH={PACKAGES}")


def losses(folder: Path) -> list[float]:
    """Return the loss of each step."""
    return [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]


def left_over(folder: Path) -> str:
    """Return the remaining containers of a run in any state."""
    return engine_output("ps", "--all", "--filter", f"label=primus.run={folder}", "--format", "{{.ID}}")


def test_run_in_a_container_has_the_same_losses(image: str, tmp_path: Path) -> None:
    """The losses equal those of a run on the host, and the container is removed."""
    folders = [tmp_path / "host", tmp_path / "image"]
    for folder, runtime in zip(folders, [("direct", f"--python={sys.executable}"), inside(image)], strict=True):
        done = subprocess.run(
            words(folder, *runtime, settings=("train.steps=3",)), cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    assert losses(folders[0]) == losses(folders[1])
    assert len(losses(folders[0])) == 3
    assert left_over(folders[1]) == ""


@pytest.mark.fault
def test_sigterm_ends_the_container_with_a_checkpoint(image: str, tmp_path: Path) -> None:
    """The ranks receive the signal, the exit code is 75, and the same command continues at the checkpoint."""
    folder = tmp_path / "run"
    argv = words(folder, *inside(image), settings=("train.steps=60",))
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            assert wait_for(lambda: (folder / "steps.jsonl").exists() and len(losses(folder)) > 2, timeout_s=300, every_s=0.1)
            running = left_over(folder)
            child.send_signal(signal.SIGTERM)
            output, _ = child.communicate(timeout=200)
        finally:
            child.kill()
    stopped_at = len(losses(folder))
    again = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)

    assert running
    assert child.returncode == 75, output
    assert 2 < stopped_at < 60
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(losses(folder)) == 60
    assert left_over(folder) == ""
