"""The step time of a recipe, against published runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from primus_bootstrap.launch.estimate.rates import rates_of
from primus_bootstrap.launch.estimate.speed import step_time
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.recipe import FSDP, FULL, Batch, Layout, Recipe, Recompute
from tests.unit.published_runs import Run, runs, shape_of

_SPEEDS = [run for run in runs() if run.tokens_per_s and not run.unlike]


def _recipe(layout: Layout, **changes: object) -> Recipe:
    recipe = Recipe("test", "llama-3.1-8b", "megatron", "MI300X", "bf16", layout, Batch(8192, 1, 256))
    return replace(recipe, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("run", _SPEEDS, ids=[run.name for run in _SPEEDS])
def test_speeds_agree_with_published_ones(run: Run) -> None:
    """Dense models within 15 %. With experts, the releases of the backends differ more than that."""
    bound = 0.3 if shape_of(run.recipe.model).experts else 0.15
    assert run.estimate().tokens_per_s == pytest.approx(run.tokens_per_s, rel=bound)


def test_recomputation_costs_a_third_of_the_products() -> None:
    """The forward pass is one of three."""
    shape, rates = catalogue.model("llama-3.1-8b"), rates_of("MI300X")
    step = step_time(shape, _recipe(Layout(8), recompute=Recompute(FULL)), rates)
    output = 6 * shape.embedding_parameters() * 256 * 8192 / 8 / rates.gemm_flops("bf16", shape.width)
    forward = (step.matrix_products - output) / 3 + step.attention / 3.5 + step.other_kernels / 4
    assert step.recompute == pytest.approx(forward, rel=0.02)


def test_more_micro_batches_make_the_bubble_smaller() -> None:
    """The bubble is (PP - 1) / VPP of a micro-batch's time."""
    shape, rates = catalogue.model("llama-3.1-8b"), rates_of("MI300X")
    few, many = (step_time(shape, _recipe(Layout(8, pipeline=4), batch=Batch(8192, 1, count)), rates) for count in (16, 128))
    assert few.bubble == many.bubble
    assert few.bubble / few.total > 4 * many.bubble / many.total


def test_gathering_weights_over_the_network_is_exposed_if_there_is_little_work() -> None:
    """One short sequence per micro-batch does not hide 70 B parameters."""
    shape, rates = catalogue.model("llama-3.1-70b"), rates_of("MI300X")
    short, long = (step_time(shape, _recipe(Layout(64, data=FSDP), batch=Batch(length, 1, 64)), rates) for length in (512, 8192))
    assert short.exposed_communication > 0.3 * short.total
    assert long.exposed_communication < 0.1 * long.total


def test_a_group_with_one_gpu_per_host_uses_one_card() -> None:
    """Tensor parallelism within hosts leaves each data-parallel group with a single network card per host."""
    rates = rates_of("MI300X")
    assert rates.bandwidth(8) == rates.links * 1e9
    assert rates.bandwidth(64) == min(rates.links, 8 * rates.network) * 1e9
    assert rates.bandwidth(8, 8) == rates.network * 1e9
