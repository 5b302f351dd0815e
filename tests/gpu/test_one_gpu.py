"""Tests on one GPU: detection, training, resume, a benchmark, and the diagnosis of failures.

They need torch, PyYAML, pytest-timeout and a GPU: `python -m pytest tests/gpu --noconftest`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from primus_bootstrap.launch.detect import gpus, sysfs
from workloads.common.device import compute_units
from workloads.common.peaks import find_peak
from workloads.train.attention import BACKENDS, attend

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.filterwarnings("default"),  # torch warns why a backend has no kernel
]

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
LIMIT_S = 200


def run_primus(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `primus-cli direct` with one rank and this Python."""
    command = [sys.executable, "-m", "primus_bootstrap.launch", "direct", "--nproc", "1", "--python", sys.executable]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))), "PRIMUS_METRICS_FOLDER": ""}
    command += ["--output", str(folder), *arguments]
    return subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def train(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """Train the small model; return the records of steps.jsonl."""
    done = run_primus(folder, "--", "train", "pretrain", "--config", "debug-dense", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return json_lines(folder / "steps.jsonl")


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def cause(folder: Path) -> str:
    """Return the name of the diagnosed cause of a run."""
    failure: Mapping[str, Any] = json.loads((folder / "failure.json").read_text("utf-8"))
    return str((failure["cause"] or {"name": "unknown"})["name"])


def test_detection_finds_the_gpu() -> None:
    """Detection and torch agree on the number of GPUs, the model and its memory."""
    found = gpus.find_gpus(sysfs.Host(Path("/")))
    properties = torch.cuda.get_device_properties(0)
    words = re.split(r"\W+", torch.cuda.get_device_name(0))

    assert found.verdict == gpus.OK, found
    assert len(found.gpus) >= torch.cuda.device_count()
    assert any(model in words for model in found.models), (found.models, words)
    # The driver's reserve, and GB that the vendor labels GiB, are less than 10 %.
    assert found.gpus[0].memory_gib == pytest.approx(properties.total_memory / GIB, rel=0.1)


def test_the_loss_falls_in_bf16(tmp_path: Path) -> None:
    """The loss of a small model falls in bf16, and the records contain the device and its memory."""
    steps = train(tmp_path / "run", "compute.precision=bf16", "train.steps=30")
    result = json_lines(tmp_path / "run" / "results.jsonl")[-1]
    losses = [step["loss"] for step in steps]

    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.5, losses
    assert result["device"] == torch.cuda.get_device_name(0)
    assert 0 < result["memory_peak_gib"] < 4


def test_resume_is_bit_identical(tmp_path: Path) -> None:
    """With `compute.deterministic`, a resumed run has the same losses as an uninterrupted one."""
    arguments = ("compute.precision=bf16", "compute.deterministic=true", "optimizer.decay_steps=12", "checkpoint.every_steps=6")
    uninterrupted = train(tmp_path / "uninterrupted", *arguments, "train.steps=12")
    train(tmp_path / "resumed", *arguments, "train.steps=6")
    resumed = train(tmp_path / "resumed", *arguments, "train.steps=12")

    assert [step["step"] for step in resumed] == list(range(1, 13))
    assert [step["loss"] for step in resumed] == [step["loss"] for step in uninterrupted]


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_backends_agree(backend: str) -> None:
    """In bf16, each supported backend gives the result of plain arithmetic."""
    generator = torch.Generator("cuda").manual_seed(1)
    inputs = [torch.randn(2, 8, 256, 64, device="cuda", generator=generator).to(torch.bfloat16) for _ in range(3)]
    try:
        result = attend(inputs[0], inputs[1], inputs[2], backend)
    except RuntimeError as error:
        pytest.skip(f"the device does not support the backend {backend}: {error}")
    exact = attend(inputs[0].double(), inputs[1].double(), inputs[2].double(), "math")

    assert float((result.double() - exact).norm() / exact.norm()) < 1e-2


def test_gemm_is_plausible(tmp_path: Path) -> None:
    """A large product in bf16 is correct and reaches 30 to 100 % of the GPU's peak."""
    arguments = ("benchmark", "gemm", "--device", "cuda", "--shapes", "8192x8192x8192", "--dtypes", "bf16", "--repeats", "5")
    done = run_primus(tmp_path / "run", "--", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    line = json_lines(tmp_path / "run" / "results.jsonl")[-1]
    peak = find_peak(torch.cuda.get_device_name(0), compute_units(torch.device("cuda", 0)), "bf16")
    if peak is None:
        pytest.skip(f"the peak of {torch.cuda.get_device_name(0)} is unknown")

    assert line["correct"] is True
    assert 0.3 * peak.tflops < line["value"] <= peak.tflops, line


def test_full_memory_is_diagnosed(tmp_path: Path) -> None:
    """A batch that does not fit fails with the cause `gpu_out_of_memory`."""
    large = ("model.vocabulary=128256", "train.sequence_length=8192", "train.micro_batch=128", "train.global_batch=128")
    done = run_primus(tmp_path / "run", "--", "train", "pretrain", "--config", "debug-dense", "compute.precision=bf16", *large)

    assert done.returncode != 0
    assert cause(tmp_path / "run") == "gpu_out_of_memory", done.stdout


def test_an_index_out_of_range_is_diagnosed(tmp_path: Path) -> None:
    """A token outside the vocabulary fails with the cause `index_out_of_range`, although the GPU reports it asynchronously."""
    program = ("import torch", "t = torch.nn.Embedding(16, 8).cuda()", "print(float(t(torch.tensor([3, 99], device='cuda')).sum()))")
    (tmp_path / "wrong.py").write_text("\n".join(program) + "\n", "utf-8")
    done = run_primus(tmp_path / "run", "--script", str(tmp_path / "wrong.py"))

    assert done.returncode != 0
    assert cause(tmp_path / "run") == "index_out_of_range", done.stdout
