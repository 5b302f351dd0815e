"""Context, pipeline and expert parallelism on CPU and gloo: they do not change the losses, and checkpoints resume under other layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workloads.ranks import Run, train

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long("workloads")
DENSE = ("--config", "debug-dense", "model.layers=4", "train.steps=4", "train.micro_batch=1", "checkpoint.every_steps=2")
MOE = ("--config", "debug-moe", *DENSE[2:], "model.layers=2", "model.balance_weight=0")
FSDP = "parallel.strategy=fsdp"
CONTEXT, TENSOR, PIPELINE, EXPERT = "parallel.context=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.expert=2"
INTERLEAVED = (PIPELINE, "parallel.virtual_pipeline=2")
Start = tuple[int, tuple[str, ...]]
"""The number of ranks of a run, and its arguments."""
# The bound for every layout: fp32 sums in another order. Losses of four steps, and norms of the gradient.
LOSS, NORM = 2e-6, 1e-4


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train the dense model on one rank, as the reference."""
    return train(tmp_path_factory.mktemp("dense"), 1, *DENSE)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train the model with experts on one rank, as the reference. The balance loss, which depends on the split, has no weight."""
    return train(tmp_path_factory.mktemp("experts"), 1, *MOE)


def assert_same(run: Run, reference: Run) -> None:
    """Compare the losses, the norms and the tokens of every step."""
    assert run.losses() == pytest.approx(reference.losses(), rel=LOSS)
    assert [line["grad_norm"] for line in run.steps()] == pytest.approx([line["grad_norm"] for line in reference.steps()], rel=NORM)
    assert [line["tokens"] for line in run.steps()] == [line["tokens"] for line in reference.steps()]


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (2, (CONTEXT,)),
        (2, (CONTEXT, FSDP, "compute.recompute=selective")),
        (4, (CONTEXT, TENSOR, FSDP)),
        (2, (PIPELINE, FSDP)),
        (4, (PIPELINE, FSDP, "compute.recompute=full")),
        (2, (*INTERLEAVED, FSDP)),
        (4, (*INTERLEAVED, FSDP, TENSOR)),
        (4, (PIPELINE, CONTEXT, FSDP)),
    ],
    ids=[
        "context",
        "context, fsdp",
        "context, tensor",
        "pipeline",
        "pipeline, 2 x",
        "interleaved",
        "interleaved, tensor",
        "pipeline, context",
    ],
)
def test_a_layout_does_not_change_the_losses(dense: Run, tmp_path: Path, ranks: int, arguments: tuple[str, ...]) -> None:
    """Of a dense model."""
    assert_same(train(tmp_path, ranks, *DENSE, *arguments), dense)


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [(2, (EXPERT, FSDP)), (4, (EXPERT, FSDP)), (4, (EXPERT, FSDP, PIPELINE)), (4, (EXPERT, FSDP, CONTEXT))],
    ids=["expert", "expert, fsdp", "expert, pipeline", "expert, context"],
)
def test_a_layout_does_not_change_the_losses_with_experts(experts: Run, tmp_path: Path, ranks: int, arguments: tuple[str, ...]) -> None:
    """The experts get the same tokens, wherever they are."""
    assert_same(train(tmp_path, ranks, *MOE, *arguments), experts)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, (*INTERLEAVED, FSDP)), (2, (*INTERLEAVED, FSDP))),
        ((2, (*INTERLEAVED, FSDP)), (1, ("parallel.strategy=ddp",))),
        ((1, (FSDP,)), (4, (PIPELINE, CONTEXT, FSDP))),
    ],
    ids=["interleaved", "interleaved to one rank", "one rank to pipeline and context"],
)
def test_a_run_resumes_under_another_layout(dense: Run, tmp_path: Path, before: Start, after: Start) -> None:
    """A checkpoint has the whole model under the same names."""
    assert_resumes(tmp_path, DENSE, before, after, dense)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, (EXPERT, FSDP)), (2, (EXPERT, FSDP))),
        ((2, (EXPERT, FSDP)), (1, (FSDP,))),
        ((1, ("parallel.strategy=ddp",)), (4, (EXPERT, PIPELINE, FSDP))),
    ],
    ids=["expert", "expert to one rank", "one rank to expert and pipeline"],
)
def test_a_run_with_experts_resumes_under_another_layout(experts: Run, tmp_path: Path, before: Start, after: Start) -> None:
    """Also if the ranks have other experts than before."""
    assert_resumes(tmp_path, MOE, before, after, experts)


def assert_resumes(folder: Path, arguments: tuple[str, ...], before: Start, after: Start, reference: Run) -> None:
    """Train half of the steps under one layout, and the others under another one."""
    train(folder, before[0], *arguments, *before[1], "train.steps=2", "optimizer.decay_steps=4")
    run = train(folder, after[0], *arguments, *after[1])

    assert "resumed from" in run.outputs[0]
    assert_same(run, reference)
