"""primus_bootstrap.launch.recipes: the shipped recipes, their checks, and the choice of one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.structured import InvalidDataError
from primus_bootstrap.launch.backends.key_table import problem
from primus_bootstrap.launch.backends.registry import backends
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.explanation import evidence, explain
from primus_bootstrap.launch.recipes.recipe import DERIVED, Batch, Layout, Recipe, Recompute
from primus_bootstrap.launch.recipes.recipe_files import load_recipes
from primus_bootstrap.launch.recipes.stages import layers_of_stage, stage_layers
from primus_bootstrap.launch.recipes.validity import problems

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {item.name: item for item in catalogue.recipes()}
FILES = ROOT / "primus_bootstrap/launch/data/recipes"
# A repository's file at a commit, a discussion of the project that made it, or a file of this project.
SOURCE = re.compile(r"https://github\.com/[^/]+/[^/]+/blob/[0-9a-f]{12,40}/\S+|workloads/\S+")
DENSE = Recipe(
    "test", "llama-3.1-405b", "megatron", "MI300X", "bf16", Layout(gpus=128, tensor=8, pipeline=8), Batch(8192, 1, 256),
    keys={"decoder_first_pipeline_num_layers": 15, "decoder_last_pipeline_num_layers": 15},
)  # fmt: skip
EVEN = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
MOE = Recipe("test", "mixtral-8x22b", "megatron", "MI300X", "bf16", Layout(gpus=32, pipeline=4, expert=8), Batch(8192, 1, 256))


def test_every_recipe_is_consistent() -> None:
    """No shipped recipe contradicts itself or its model."""
    found = {name: problems(recipe, catalogue.model(recipe.model)) for name, recipe in RECIPES.items()}

    assert {name: listed for name, listed in found.items() if listed} == {}


def test_every_recipe_names_its_source_and_reason() -> None:
    """A recipe has a source at a commit and a reason in whole sentences; a file of this project exists."""
    sources = {recipe.source for recipe in RECIPES.values()}

    assert [source for source in sources if not SOURCE.fullmatch(source)] == []
    assert [source for source in sources if not source.startswith("https:") and not (ROOT / source).is_file()] == []
    assert [name for name, recipe in RECIPES.items() if not recipe.why.endswith(".")] == []


def test_every_setting_of_a_backend_is_accepted() -> None:
    """The pinned version of a backend knows the settings of its recipes, and their values."""
    tables = {name: found.known_keys() for name, found in backends().items()}
    used = {(recipe.backend, name, str(value)): value for recipe in RECIPES.values() for name, value in recipe.keys.items()}
    wrong = {
        (backend, name): problem(tables[backend][name], value)[0] if name in tables[backend] else "unknown"
        for (backend, name, _), value in used.items()
        if backend in tables
    }

    assert {place: what for place, what in wrong.items() if what} == {}


def test_every_model_has_a_file_of_recipes() -> None:
    """Files and models correspond."""
    assert {path.stem for path in FILES.glob("*.yml")} == set(catalogue.models())


@pytest.mark.parametrize("gpu", ["MI300X", "MI325X", "MI355X", "H100", "H200", "B200"])
@pytest.mark.parametrize("backend", ["megatron", "torchtitan", "native"])
def test_every_gpu_has_recipes_of_llama(gpu: str, backend: str) -> None:
    """The most used model has a recipe for every data-centre GPU and PyTorch backend."""
    assert [item for item in RECIPES.values() if (item.model, item.gpu, item.backend) == ("llama-3.1-8b", gpu, backend)]


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """Return a recipe with other sizes; the name says whether a size belongs to the layout, the batch or the recipe."""
    layout = {name: value for name, value in changes.items() if name in Layout.__dataclass_fields__}
    batch = {name: value for name, value in changes.items() if name in Batch.__dataclass_fields__}
    rest = {name: value for name, value in changes.items() if name not in {*layout, *batch}}
    return replace(recipe, layout=replace(recipe.layout, **layout), batch=replace(recipe.batch, **batch), **rest)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (changed(DENSE, gpus=0), "gpus is 0"),
        (changed(DENSE, micro=0), "micro is 0"),
        (changed(DENSE, data="zero"), "data is zero"),
        (changed(DENSE, precision="fp6"), "precision is fp6"),
        (changed(DENSE, recompute=Recompute("some")), "recompute is some"),
        (changed(DENSE, gpus=96), "96 GPUs are no multiple"),
        (changed(DENSE, tensor=24, gpus=192), "does not divide heads"),
        (changed(DENSE, tensor=32, gpus=512, keys={}), "126 layers are no multiple of 8 chunks"),
        (changed(DENSE, keys={}), "126 layers are no multiple of 8 chunks"),
        (changed(DENSE, keys={"decoder_first_pipeline_num_layers": 16}), "do not divide over 8 x 1 chunks"),
        (changed(DENSE, pipeline=1, virtual_pipeline=2, keys={}), "virtual_pipeline needs pipeline > 1"),
        (changed(DENSE, data="fsdp"), "does not combine fsdp with pipeline"),
        (changed(DENSE, all=255), "the batch of 255 is no multiple"),
        (changed(DENSE, virtual_pipeline=2, all=6, keys=EVEN), "3 micro batches are no multiple of pipeline 8"),
        (changed(DENSE, length=262144), "exceeds the model's context"),
        (changed(DENSE, context=2, length=8190), "no multiple of 2 x context"),
        (changed(DENSE, expert=8), "the model has no experts"),
        (changed(DENSE, gpu="MI3000X"), "unknown GPU MI3000X"),
        (changed(DENSE, gpu="A100", precision="fp8"), "A100 has no FP8"),
        (changed(DENSE, precision="mxfp8"), "MI300X has no MXFP8"),
        (changed(DENSE, recompute=Recompute("full", 17)), "no stage has more than 16 layers"),
        (changed(DENSE, recompute=Recompute("selective", 2)), "recompute.layers needs kind: full"),
        (changed(MOE, expert=3), "expert 3 does not divide 8 experts"),
        (changed(MOE, gpus=16, all=256), "no multiple of expert x pipeline"),
        (changed(MOE, tensor=2, gpus=32, all=256), "expert_tensor_parallel_size = 64"),
    ],
)  # fmt: skip
def test_contradictions_are_found(recipe: Recipe, expected: str) -> None:
    """Each contradiction is named."""
    found = problems(recipe, catalogue.model(recipe.model))

    assert [problem for problem in found if expected in problem], found


def test_the_changed_recipes_are_consistent_before() -> None:
    """What the test above changes is consistent itself."""
    assert [problems(recipe, catalogue.model(recipe.model)) for recipe in (DENSE, MOE)] == [(), ()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-405b-megatron-mi325x-fp8-64", (15, 16, 16, 16, 16, 16, 16, 15)),
        ("llama-3.1-405b-megatron-h100-fp8-1024", (15, 16, 16, 16, 16, 16, 16, 15)),
        ("llama-3.1-405b-torchtitan-h100-fp8-512", (15, 16, 16, 16, 16, 16, 16, 15)),
        ("qwen-3-235b-a22b-megatron-mi355x-bf16-32", (23, 24, 24, 23)),
        ("deepseek-v3-megatron-b200-mxfp8-256", (8, 8, 8, 8, 8, 8, 8, 5)),
        ("llama-3.1-70b-megatron-h100-fp8-64", (10, 10, 10, 11, 10, 10, 10, 9)),
    ],
)
def test_layers_of_the_stages(name: str, expected: tuple[int, ...]) -> None:
    """Layouts, fixed ends, and embeddings that count as layers give the layers of each stage."""
    recipe = RECIPES[name]

    assert layers_of_stage(recipe, catalogue.model(recipe.model)) == expected


def test_a_layout_of_groups_is_expanded() -> None:
    """Repetitions of letters and of groups stand for their chunks."""
    layout = {"pipeline_model_parallel_layout": "Et*2|(t*2|tt|)*1t*3,mL"}
    recipe = replace(MOE, layout=Layout(gpus=4, pipeline=4), keys=layout)

    assert stage_layers(recipe, replace(catalogue.model("mixtral-8x22b"), layers=9)) == (2, 2, 2, 3)


@pytest.mark.parametrize(
    ("model", "wanted", "expected"),
    [
        ("llama-3.1-70b", {"backend": "megatron", "gpu": "MI300X", "gpus": 8}, "llama-3.1-70b-megatron-mi300x-bf16-8"),
        ("llama-3.1-70b", {"backend": "megatron", "gpu": "MI300X", "gpus": 64}, "llama-3.1-70b-megatron-mi300x-bf16-64"),
        ("llama-3.1-405b", {"backend": "megatron", "gpu": "H100", "precision": "fp8"}, "llama-3.1-405b-megatron-h100-fp8-1024"),
        ("llama-3.1-8b", {"backend": "native", "gpu": "H100"}, "llama-3.1-8b-native-h100-bf16-8"),
        ("deepseek-v2-lite", {"backend": "maxtext", "gpu": "MI325X", "precision": "fp8"}, "deepseek-v2-lite-maxtext-mi325x-fp8-8"),
        ("qwen-2.5-7b", {}, "qwen-2.5-7b-megatron-mi300x-bf16-8"),
    ],
)
def test_the_recipe_for_exactly_these_gpus_is_chosen(model: str, wanted: dict[str, Any], expected: str) -> None:
    """If there is a recipe for the GPUs, it is the one."""
    assert catalogue.choose(model, **wanted) is RECIPES[expected]


def test_scaling_changes_data_parallelism_only() -> None:
    """A recipe for another number of GPUs keeps its layout; the batch stays if the new replicas divide it."""
    source = RECIPES["llama-3.1-70b-megatron-mi300x-bf16-64"]
    found = catalogue.choose("llama-3.1-70b", backend="megatron", gpu="MI300X", gpus=128)

    assert found.layout == replace(source.layout, gpus=128)
    assert (found.batch, found.recompute, found.keys) == (source.batch, source.recompute, source.keys)
    assert (found.name, found.evidence) == ("llama-3.1-70b-megatron-mi300x-bf16-128", DERIVED)
    assert found.why.startswith(f"Taken from {source.name}. Scaled from 64 to 128 GPUs")


def test_a_batch_that_does_not_divide_becomes_the_next_multiple() -> None:
    """The batch grows to a multiple of what all replicas process at once, and the reason says so."""
    found = catalogue.choose("llama-3.1-70b", backend="megatron", gpu="MI300X", gpus=16)

    assert (found.batch.micro, found.batch.all) == (3, 48)
    assert "The global batch is 48 instead of 24" in found.why


def test_fewer_gpus_come_before_more() -> None:
    """Between two recipes, the one for fewer GPUs is scaled: it was made for less memory per parameter."""
    found = catalogue.choose("llama-3.1-70b", backend="megatron", gpu="MI300X", gpus=56)

    assert found.recompute == Recompute("full", 80)


@pytest.mark.parametrize(
    ("gpu", "expected"), [("MI308X", "mi300x"), ("MI350X", "mi355x"), ("GB200", "b200"), ("A100", "h100"), ("H200", "h200")]
)
def test_another_gpu_takes_the_recipe_of_the_nearest_one(gpu: str, expected: str) -> None:
    """A GPU without recipes takes those of the same vendor and as much memory or less."""
    found = catalogue.choose("llama-3.1-8b", backend="megatron", gpu=gpu)

    assert found.gpu == gpu
    assert f"-{expected}-" in found.why or f"-{expected}-" in found.name


def test_a_recipe_for_more_memory_is_not_chosen() -> None:
    """A recipe of a GPU with more memory may not fit, so there is none."""
    with pytest.raises(PlanError) as caught:
        catalogue.choose("qwen-2.5-72b", gpu="H100")

    assert caught.value.what == "no recipe of qwen-2.5-72b for H100 in bf16"
    assert "megatron on MI300X in bf16" in caught.value.fix


def test_a_number_of_gpus_that_does_not_suit_names_those_that_do() -> None:
    """The fix names the published numbers and the step."""
    with pytest.raises(PlanError) as caught:
        catalogue.choose("llama-3.1-405b", backend="megatron", gpu="MI300X", gpus=8)

    assert (
        caught.value.fix
        == "use another number of GPUs: 64, or another multiple of 64; 128, or another multiple of 64; 1024, or another multiple of 128"
    )


@pytest.mark.parametrize(
    ("wanted", "fix"),
    [({"backend": "megatronn"}, "megatron"), ({"gpu": "mi300x"}, "MI300X"), ({"precision": "bf61"}, "bf16"), ({"gpus": -1}, "from 1")],
)
def test_unknown_words_of_a_choice(wanted: dict[str, Any], fix: str) -> None:
    """A misspelt backend, GPU or precision is answered with the nearest name."""
    with pytest.raises(UsageError) as caught:
        catalogue.choose("llama-3.1-8b", **wanted)

    assert fix in caught.value.fix


def entry(**changes: Any) -> dict[str, Any]:
    """Return one entry of a file of recipes."""
    good = {"backend": "megatron", "gpu": "MI300X", "layout": {"gpus": 8}, "batch": {"length": 8192, "micro": 1, "all": 8}}
    return {**good, "source": "paper", "why": "It fits.", **changes}


def test_an_entry_stands_for_several_gpus_and_precisions() -> None:
    """Lists are expanded, and the source names the GPU and the precision of each recipe."""
    source = "primus:{gpu}/x-{PRECISION}-{precision}.yaml"
    found = load_recipes(catalogue.model("llama-3.1-8b"), [entry(gpu=["MI300X", "H100"], precision=["bf16", "fp8"], source=source)])

    assert [item.name.removeprefix("llama-3.1-8b-megatron-") for item in found] == [
        "mi300x-bf16-8",
        "mi300x-fp8-8",
        "h100-bf16-8",
        "h100-fp8-8",
    ]
    assert found[3].source.startswith("https://github.com/AMD-AGI/Primus/blob/")
    assert found[3].source.endswith("/H100/x-FP8-fp8.yaml")


def test_settings_of_the_model_are_weaker_than_those_of_the_recipe() -> None:
    """A recipe has its model's settings of the backend, and may replace them."""
    found = load_recipes(catalogue.model("llama-3.1-8b"), [entry(keys={"rope_scaling_factor": 1.0})])

    assert found[0].keys == {"use_rope_scaling": True, "rope_scaling_factor": 1.0}


def test_every_mistake_of_a_file_is_reported() -> None:
    """One error names all mistakes: an unknown key, a contradiction and a duplicate."""
    entries = [entry(recomputed="full"), entry(batch={"length": 8192, "micro": 1, "all": 9}), entry(), entry()]

    with pytest.raises(InvalidDataError) as caught:
        load_recipes(catalogue.model("llama-3.1-8b"), entries)

    lines = caught.value.what.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines][:2] == ["[0].recomputed", "[1]"]
    assert len(lines) == 4  # entries 2 and 3 repeat the name of entry 1
    assert all(line.startswith("recipes/llama-3.1-8b.yml: ") for line in lines)


def test_an_explanation_has_the_numbers_of_the_model() -> None:
    """Each size is related to the model: heads, layers, experts, tokens, and the wait of the pipeline."""
    recipe = RECIPES["deepseek-v3-megatron-h100-bf16-1024"]
    found = {choice.name: f"{choice.value} | {choice.meaning}" for choice in explain(recipe, catalogue.model(recipe.model))}

    assert "671.0 B parameters, 36.6 B of them used for a token" in found["model"]
    assert "64 of 128 heads" in found["tensor"]
    assert "6 to 8 layers per stage" in found["pipeline"]
    assert "add 0.7%" in found["pipeline"]  # 7 / (4 x 256)
    assert "4 of 256 experts per rank" in found["expert"]
    assert found["data"].startswith("distributed_optimizer, 64 replicas")
    assert "67.11 M tokens per step; 256 forward passes of 1" in found["batch"]
    assert evidence(recipe).startswith("computed from the source")


def test_every_recipe_can_be_explained() -> None:
    """Every choice of every recipe has a meaning."""
    for recipe in RECIPES.values():
        choices = explain(recipe, catalogue.model(recipe.model))

        assert {"model", "data", "batch", "recompute", "precision"} <= {choice.name for choice in choices}
        assert all(choice.meaning for choice in choices)
        assert evidence(recipe)
