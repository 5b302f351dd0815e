"""Complete training runs on CPU and gloo: parallelism and resume do not change the losses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.workloads.ranks import ROOT, Run, train

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long("workloads")
DENSE = ("--config", "debug-dense", "train.steps=8", "checkpoint.every_steps=4")
FSDP = "parallel.strategy=fsdp"
TENSOR = "parallel.tensor=2"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train on two ranks without interruption, as the reference."""
    return train(tmp_path_factory.mktemp("undisturbed"), 2, *DENSE)


def test_the_loss_decreases(undisturbed: Run) -> None:
    """On synthetic data."""
    losses = undisturbed.losses()

    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (1, ()),
        (1, ("train.micro_batch=8",)),
        (2, (FSDP,)),
        (2, (FSDP, TENSOR)),
        (2, (FSDP, "compute.recompute=full", "parallel.reshard_after_forward=false")),
        (2, ("compute.recompute=selective", "compute.attention=math")),
    ],
    ids=["one rank", "no accumulation", "fsdp", "tensor", "fsdp, full recompute", "selective recompute, other attention"],
)
def test_parallelism_does_not_change_the_losses(undisturbed: Run, tmp_path: Path, ranks: int, arguments: tuple[str, ...]) -> None:
    """The same global batch gives the same loss and gradient, except for the order of additions."""
    run = train(tmp_path, ranks, *DENSE, *arguments)

    assert run.losses() == pytest.approx(undisturbed.losses(), rel=2e-6)
    assert [line["grad_norm"] for line in run.steps()] == pytest.approx([line["grad_norm"] for line in undisturbed.steps()], rel=1e-4)


def test_a_resumed_run_has_bit_identical_losses(undisturbed: Run, tmp_path: Path) -> None:
    """Weights, optimizer, schedule, data order and dropout continue exactly."""
    drop = ("model.dropout=0.1",)
    whole = train(tmp_path / "whole", 2, *DENSE, *drop)
    parts = tmp_path / "parts"
    train(parts, 2, *DENSE, *drop, "train.steps=4", "optimizer.decay_steps=8")
    second = train(parts, 2, *DENSE, *drop)

    assert "resumed from" in second.outputs[0]
    assert second.losses() == whole.losses()
    assert whole.losses() != undisturbed.losses()


@pytest.mark.parametrize(
    ("first", "then", "strategy"), [(2, 1, FSDP), (1, 2, FSDP), (2, 4, FSDP), (2, 2, "parallel.strategy=ddp")], ids=str
)
def test_a_run_resumes_on_another_number_of_ranks(undisturbed: Run, tmp_path: Path, first: int, then: int, strategy: str) -> None:
    """FSDP checkpoints on one, two and four ranks, and with DDP."""
    train(tmp_path, first, *DENSE, FSDP, "train.steps=4", "optimizer.decay_steps=8")
    run = train(tmp_path, then, *DENSE, strategy)

    assert run.losses() == pytest.approx(undisturbed.losses(), rel=2e-6)


@pytest.mark.parametrize(
    ("before", "after"),
    [((FSDP, TENSOR), (FSDP, TENSOR)), ((FSDP, TENSOR), (FSDP,)), ((FSDP,), (FSDP, TENSOR))],
    ids=["tensor", "tensor to fsdp", "fsdp to tensor"],
)
def test_a_run_resumes_with_other_parallelism(undisturbed: Run, tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Between tensor parallelism and FSDP."""
    train(tmp_path, 2, *DENSE, *before, "train.steps=4", "optimizer.decay_steps=8")
    run = train(tmp_path, 2, *DENSE, *after)

    assert "resumed from" in run.outputs[0]
    assert run.losses() == pytest.approx(undisturbed.losses(), rel=2e-6)


def test_a_resumed_run_with_experts_has_bit_identical_losses(tmp_path: Path) -> None:
    """Routing and the experts' states continue exactly."""
    arguments = ("--config", "debug-moe", "train.steps=8")
    whole = train(tmp_path / "whole", 2, *arguments)
    train(tmp_path / "parts", 2, *arguments, "train.steps=4", "optimizer.decay_steps=8")
    second = train(tmp_path / "parts", 2, *arguments)

    assert "resumed from" in second.outputs[0]
    assert second.losses() == whole.losses()


def test_old_checkpoints_are_removed(tmp_path: Path) -> None:
    """The newest `keep` checkpoints stay, and `latest` names the newest."""
    run = train(tmp_path, 1, *DENSE, "checkpoint.every_steps=2", "checkpoint.keep=2")

    assert run.checkpoints() == ["latest", "step-00000006", "step-00000008"]
    assert (tmp_path / "checkpoints/latest").read_text() == "step-00000008\n"


def test_experts_have_the_same_losses_with_ddp_and_fsdp(tmp_path: Path) -> None:
    """And the loss decreases."""
    arguments = ("--config", "debug-moe", "train.steps=8")
    ddp, fsdp = train(tmp_path / "ddp", 2, *arguments), train(tmp_path / "fsdp", 2, *arguments, FSDP)

    assert ddp.losses()[-1] < ddp.losses()[0] - 0.3
    assert fsdp.losses() == pytest.approx(ddp.losses(), rel=2e-6)
    assert all(1 <= line["balance_loss"] < 3 for line in ddp.steps())


def test_bf16_learns_with_ddp_and_fsdp(tmp_path: Path) -> None:
    """Autocast under DDP and mixed precision under FSDP give nearly the same losses."""
    ddp = train(tmp_path / "ddp", 2, *DENSE, "compute.precision=bf16")
    fsdp = train(tmp_path / "fsdp", 2, *DENSE, "compute.precision=bf16", FSDP)

    assert ddp.losses()[-1] < ddp.losses()[0] - 0.5
    assert fsdp.losses() == pytest.approx(ddp.losses(), rel=5e-3)


def test_a_run_under_torchrun_writes_all_files(tmp_path: Path) -> None:
    """Settings, steps, metrics, a result and checkpoints, from another folder, within a minute."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        str(ROOT / "workloads/train/pretrain.py"),
    ]
    done = subprocess.run(
        [*command, *DENSE, "train.steps=5"],
        cwd=tmp_path,
        env={"RUN_DIR": str(tmp_path / "run"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    run = Run(tmp_path / "run", [done.returncode], [done.stdout])
    result = json.loads((run.folder / "results.jsonl").read_text())

    assert done.returncode == 0, done.stderr
    assert [line["tokens"] for line in run.steps()] == [512 * step for step in range(1, 6)]
    assert run.steps()[-1]["mfu"] is None
    assert run.steps()[-1]["tokens_per_s"] > 0
    assert f'run="{run.folder}",job_id="",host="' in (run.folder / "metrics.prom").read_text()
    assert [text.rpartition(" ")[2] for text in (run.folder / "metrics.prom").read_text().splitlines() if text[0] != "#"] == ["0", "5"]
    assert result["step_time_s"]["n"] == 2
    assert result["settings"] == json.loads((run.folder / "settings.json").read_text())
    assert result["outcome"] == "done"
    assert run.checkpoints() == ["latest", "step-00000004", "step-00000005"]
