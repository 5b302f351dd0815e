"""primus_bootstrap.launch.recipes.model_shape and data/models.yml: shapes and parameter counts of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.recipes import catalogue

# The parameters in the safetensors index of each published checkpoint, from the model's page.
EXACT = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-72b": 72_706_203_648,
    "qwen-3-0.6b": 596_049_920,
    "qwen-3-4b": 4_022_468_096,
    "qwen-3-8b": 8_190_735_360,
    "qwen-3-14b": 14_768_307_200,
    "qwen-3-32b": 32_762_123_264,
    "qwen-3-30b-a3b": 30_532_122_624,
    "qwen-3-235b-a22b": 235_093_634_560,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}
MANUAL = Path(__file__).resolve().parents[2] / "docs/recipes.md"
MODELS = sorted(catalogue.models())


@pytest.mark.parametrize("name", MODELS)
def test_computed_parameters_equal_the_published_count(name: str) -> None:
    """The parameters that follow from the shape are the published ones, within their rounding."""
    shape = catalogue.model(name)

    assert shape.published_parameters
    assert abs(shape.parameters() - shape.published_parameters) <= (shape.published_to - 1) / 2


@pytest.mark.parametrize("name", EXACT)
def test_counts_of_the_checkpoints(name: str) -> None:
    """The count in models.yml is that of the checkpoint."""
    assert catalogue.model(name).parameters() == EXACT[name]


def test_a_vision_encoder_is_all_that_llama_4_leaves_out() -> None:
    """The text parts of both models of Llama 4 lack the same number of parameters: the vision encoder and its projector."""
    whole = {"llama-4-scout": 108_641_793_536, "llama-4-maverick": 401_583_781_376}

    assert {total - catalogue.model(name).parameters() for name, total in whole.items()} == {871_932_416}


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61), ("deepseek-v2", 21.0), ("deepseek-v3", 37.0), ("llama-4-scout", 16.5)],
)
def test_parameters_that_a_token_uses(name: str, billions: float) -> None:
    """Active parameters match the papers, which round or count embeddings in different ways, within 3 percent."""
    assert catalogue.model(name).active_parameters() / 1e9 == pytest.approx(billions, rel=0.03)


def test_experts_are_in_the_layers_of_the_paper() -> None:
    """The first layers of DeepSeek-V3 are dense; every second layer of Llama 4 Maverick has experts, the last one included."""
    deepseek, maverick = catalogue.model("deepseek-v3"), catalogue.model("llama-4-maverick")

    assert [deepseek.has_experts(layer) for layer in range(5)] == [False, False, False, True, True]
    assert [maverick.has_experts(layer) for layer in range(4)] == [False, True, False, True]
    assert maverick.has_experts(47)


def test_local_layers_see_their_window() -> None:
    """Three of four layers of Llama 4 see 8192 tokens, every second one of gpt-oss 128."""
    scout, oss = catalogue.model("llama-4-scout"), catalogue.model("gpt-oss-20b")

    assert [scout.seen_tokens(layer, 65536) for layer in range(4)] == [8192, 8192, 8192, 65536]
    assert [oss.seen_tokens(layer, 4096) for layer in range(2)] == [128, 4096]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_source(name: str) -> None:
    """A shape names the paper or the config.json that it is from."""
    assert catalogue.model(name).source.startswith(("https://", "arXiv:"))


@pytest.mark.parametrize("name", MODELS)
def test_the_manual_has_a_row_for_every_model(name: str) -> None:
    """The row of docs/recipes.md has the parameters, and the number of recipes of each backend."""
    shape = catalogue.model(name)
    backends = [recipe.backend for recipe in catalogue.recipes_of(name)]
    counts = [str(backends.count(backend) or "") for backend in ("megatron", "torchtitan", "maxtext", "native")]
    row = " | ".join([f"`{name}`", f"{shape.parameters():,}", f"{shape.active_parameters() / 1e9:.1f}", *counts])

    assert f"| {row} |" in MANUAL.read_text(encoding="utf-8").splitlines()


def test_an_unknown_model_gets_the_nearest_name() -> None:
    """A misspelt name is answered with the name that was probably meant."""
    with pytest.raises(UsageError) as caught:
        catalogue.model("lama-3.1-70b")

    assert caught.value.fix == "did you mean llama-3.1-70b?"
