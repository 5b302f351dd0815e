"""The memory of a recipe, against Megatron's own count and published peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from primus_bootstrap.launch.estimate import verdict
from primus_bootstrap.launch.estimate.memory import in_flight, memory, stage_layers
from primus_bootstrap.launch.estimate.verdict import DOES_NOT_FIT, FITS, TOO_CLOSE, estimate
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.recipe import DDP, FULL, Batch, Layout, Recipe, Recompute
from tests.unit.published_runs import Run, runs

_MIB_PER_GIB = 1024
_PEAKS = [run for run in runs() if run.memory_gib]


def _recipe(layout: Layout, *, backend: str = "megatron", **changes: object) -> Recipe:
    recipe = Recipe("test", "llama-3.1-8b", backend, "MI300X", "bf16", layout, Batch(8192, 1, 256))
    return replace(recipe, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "layout", "mib"),
    [("llama-3.1-8b", Layout(8), 57_437), ("llama-3.1-405b", Layout(8, tensor=8), 870_929)],
)
def test_states_equal_those_of_megatron(model: str, layout: Layout, mib: int) -> None:
    """megatron/training/theoretical_memory_usage.py of 0.19.2 has these numbers for weights, gradients and optimizer."""
    stage = memory(catalogue.model(model), _recipe(layout))[0]
    states = stage.weights + stage.gradients + stage.optimizer
    assert states * _MIB_PER_GIB == pytest.approx(mib, rel=0.001)


@pytest.mark.parametrize(("moment", "size"), [("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 1)])
def test_types_of_moments_have_their_sizes(moment: str, size: int) -> None:
    """Megatron keeps an fp32 copy of the weights and two moments, all sharded over the data-parallel ranks."""
    keys = {"exp_avg_dtype": moment, "exp_avg_sq_dtype": moment}
    model = catalogue.model("llama-3.1-8b")
    plain, small = (memory(model, _recipe(Layout(8), keys=given))[0] for given in ({}, keys))
    assert small.optimizer / plain.optimizer == pytest.approx((4 + 2 * size) / 12)
    assert small.weights == plain.weights


@pytest.mark.parametrize("run", _PEAKS, ids=[run.name for run in _PEAKS])
def test_peaks_agree_with_published_ones(run: Run) -> None:
    """Torchtitan states reserved memory, which includes fragmentation, so its peaks are higher; most so with pipeline stages."""
    found = run.estimate()
    peak = found.fullest.total - (found.fullest.fixed if run.recipe.backend == "native" else 0)
    bound = 0.12 if run.recipe.backend in ("native", "maxtext") else 0.35 if run.recipe.layout.pipeline > 1 else 0.3
    assert peak == pytest.approx(run.memory_gib, rel=bound)


def test_stages_of_an_interleaved_pipeline_have_chunks_of_the_whole_model() -> None:
    """Stage 1 of two, with two chunks, has the second and the fourth quarter."""
    layers = stage_layers(catalogue.model("llama-3.1-8b"), _recipe(Layout(8, pipeline=2, virtual_pipeline=2)))
    assert layers[1] == (*range(8, 16), *range(24, 32))


@pytest.mark.parametrize(
    ("virtual", "stage", "expected"),
    [(1, 0, 4), (1, 3, 1), (2, 0, (3 * 2 + 4 + 1) / 2), (2, 3, (4 + 1) / 2)],
)
def test_micro_batches_in_flight(virtual: int, stage: int, expected: float) -> None:
    """The first stage keeps the most; interleaving adds to it."""
    assert in_flight(_recipe(Layout(8, pipeline=4, virtual_pipeline=virtual)), stage) == expected


def test_few_micro_batches_limit_what_is_in_flight() -> None:
    """With two micro-batches, no stage keeps four."""
    assert in_flight(_recipe(Layout(4, pipeline=4), batch=Batch(8192, 1, 2)), 0) == 2


def test_the_fullest_stage_decides() -> None:
    """1F1B keeps the most activations on the first stage."""
    found = estimate(catalogue.model("llama-3.1-8b"), _recipe(Layout(8, pipeline=4)))
    assert found.fullest.stage == 0
    assert found.stages[3].temporary > found.stages[0].temporary  # the loss is on the last one


def test_recomputation_of_some_layers_is_between_none_and_all() -> None:
    """Each recomputed layer keeps its input only."""
    shape = catalogue.model("llama-3.1-8b")
    kept = [
        memory(shape, _recipe(Layout(8), recompute=recompute))[0].activations
        for recompute in (Recompute(), Recompute(FULL, 16), Recompute(FULL))
    ]
    assert kept[0] > kept[1] > kept[2]
    assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2, rel=0.01)


def test_layers_to_recompute_are_counted_in_each_chunk() -> None:
    """Megatron recomputes the first layers of each virtual stage."""
    shape, layout = catalogue.model("llama-3.1-8b"), Layout(8, pipeline=2, virtual_pipeline=4)
    all_of_a_chunk = memory(shape, _recipe(layout, recompute=Recompute(FULL, 4)))[0].activations
    assert all_of_a_chunk == memory(shape, _recipe(layout, recompute=Recompute(FULL)))[0].activations


def test_ddp_shards_nothing_and_the_distributed_optimizer_its_states() -> None:
    """Eight ranks have an eighth of the optimizer each."""
    shape = catalogue.model("llama-3.1-8b")
    whole, sharded = (memory(shape, _recipe(layout))[0] for layout in (Layout(8, data=DDP), Layout(8)))
    assert whole.optimizer == pytest.approx(8 * sharded.optimizer)
    assert whole.weights == sharded.weights


@pytest.mark.parametrize(("share", "expected"), [(0.90, FITS), (0.95, TOO_CLOSE), (1.04, TOO_CLOSE), (1.06, DOES_NOT_FIT)])
def test_verdicts(share: float, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth must be free for fragmentation; an estimate a little above the memory may still run."""
    found = estimate(catalogue.model("llama-3.1-8b"), _recipe(Layout(8)))
    rates = replace(found.rates, memory_gib=found.fullest.total / share)
    monkeypatch.setattr(verdict, "rates_of", lambda _gpu: rates)
    assert estimate(catalogue.model("llama-3.1-8b"), _recipe(Layout(8))).verdict == expected
