"""The verb `estimate`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.estimate.estimate_program import main
from primus_bootstrap.launch.estimate.search import search, smallest_allocation
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.validity import problems


def test_a_recipe_that_fits_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a line per stage, and the speed."""
    assert main(["llama-3.1-405b", "--gpus", "128", "--gpu", "MI355X"]) == 0
    output = capsys.readouterr().out
    assert "stage 7" in output
    assert "memory   fits: " in output
    assert "tokens/s" in output


def test_405b_on_one_host_is_refused_with_the_smallest_allocation(capsys: pytest.CaptureFixture[str]) -> None:
    """The fix is a command with the number of GPUs on which it fits."""
    assert main(["llama-3.1-405b", "--backend", "megatron", "--gpus", "8", "--gpu", "MI300X"]) == PlanError.exit_code
    captured = capsys.readouterr()
    assert "does not fit" in captured.out
    assert "fix: it fits on 64 MI300X: TP8 PP8" in captured.err
    assert "--gpus 64 --gpu MI300X --search" in captured.err


def test_json_has_stages_speed_and_the_smallest_allocation(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing but the document is on stdout."""
    assert main(["llama-3.1-405b", "--backend", "megatron", "--gpus", "8", "--gpu", "MI300X", "--json"]) == PlanError.exit_code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "does not fit"
    assert document["margin_gib"] < 0
    assert document["smallest_allocation"]["gpus"] == 64
    assert document["step_time_s"] == pytest.approx(sum(document["step_parts_s"].values()), abs=0.01)


def test_a_recipe_with_little_memory_left_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """It exits with 0, because the published recipe runs."""
    assert main(["llama-3.1-70b-megatron-mi300x-bf16-8"]) == 0
    captured = capsys.readouterr()
    assert "too close" in captured.out
    assert "may run out of memory" in captured.err


@pytest.mark.parametrize(("words", "fix"), [(["llama-3.1-7b"], "did you mean"), (["llama-3.1-8b", "--gpu", "H10"], "did you mean H100?")])
def test_misspelt_names_get_the_nearest(words: list[str], fix: str) -> None:
    """Neither a recipe nor a GPU is guessed."""
    with pytest.raises(UsageError, match="unknown") as raised:
        main(words)
    assert fix in raised.value.fix


def test_search_prints_valid_layouts_that_fit_the_fastest_first() -> None:
    """The recipe of 64 MI300X is among them or slower."""
    recipe = catalogue.recipe("llama-3.1-70b-megatron-mi300x-bf16-64")
    shape = catalogue.model(recipe.model)
    found = search(shape, recipe)
    assert found.examined > 100
    assert [item.tokens_per_s for item in found.best] == sorted((item.tokens_per_s for item in found.best), reverse=True)
    for item in found.best:
        assert not problems(item.recipe, shape)
        assert item.verdict == "fits"


def test_search_without_a_layout_names_the_allocation_that_has_one() -> None:
    """Eight H100 have too little memory for 405B in any layout."""
    with pytest.raises(PlanError, match=r"no layout of llama-3\.1-405b fits on 8 H100") as raised:
        main(["llama-3.1-405b-megatron-h100-bf16-1024", "--gpus", "8", "--search"])
    assert "it fits on" in raised.value.fix


def test_the_smallest_allocation_of_a_small_model_is_one_host() -> None:
    """It is never larger than it must be."""
    recipe = catalogue.recipe("llama-3.1-8b-megatron-mi300x-bf16-8")
    found = smallest_allocation(catalogue.model(recipe.model), replace(recipe, layout=replace(recipe.layout, gpus=64)))
    assert found is not None
    assert found.recipe.layout.gpus == 8
