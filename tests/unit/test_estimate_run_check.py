"""The estimate before a run: refused, warned about, or not computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.estimate.run_check import REFUSE, SKIP, WARN, estimate_run
from primus_bootstrap.launch.recipes import catalogue

_RECIPE = catalogue.recipe("llama-3.1-8b-megatron-mi300x-bf16-8")
_SHAPE = catalogue.model("llama-3.1-8b")
_TOO_LARGE = replace(_RECIPE, batch=replace(_RECIPE.batch, micro=16))


def test_a_run_that_fits_has_memory_and_speed_in_the_plan() -> None:
    """One line."""
    line = estimate_run(_SHAPE, _RECIPE, REFUSE)
    assert line.startswith("estimate: fits, ")
    assert "GiB per MI300X" in line
    assert "tokens/s per GPU" in line


def test_a_run_that_does_not_fit_is_refused_with_what_fits() -> None:
    """The fix has a layout, and how to start it all the same."""
    with pytest.raises(PlanError, match="does not fit into memory") as raised:
        estimate_run(_SHAPE, _TOO_LARGE, REFUSE)
    assert "it fits with another layout (DP8 distributed optimizer, micro batch 1, recompute none)" in raised.value.fix
    assert "estimate=warn" in raised.value.fix


def test_the_fix_names_a_larger_allocation() -> None:
    """405B needs more than one host."""
    recipe = catalogue.recipe("llama-3.1-405b-megatron-mi300x-bf16-64")
    one_host = replace(recipe, layout=replace(recipe.layout, gpus=8, pipeline=1), keys={})
    with pytest.raises(PlanError) as raised:
        estimate_run(catalogue.model(recipe.model), one_host, REFUSE)
    assert "it fits on 64 GPUs (TP8 PP8" in raised.value.fix


def test_a_warning_replaces_the_refusal_if_the_user_wants_it() -> None:
    """The run starts."""
    assert "may end out of memory" in estimate_run(_SHAPE, _TOO_LARGE, WARN)


@pytest.mark.parametrize(
    ("gpu", "mode", "reason"), [("MI300X", SKIP, "estimate=skip"), ("L40S", REFUSE, "set gpu="), ("", REFUSE, "set gpu=")]
)
def test_without_rates_or_wish_nothing_is_computed(gpu: str, mode: str, reason: str) -> None:
    """An unknown GPU is no reason to refuse."""
    line = estimate_run(_SHAPE, replace(_TOO_LARGE, gpu=gpu), mode)
    assert line.startswith("estimate: not computed")
    assert reason in line
