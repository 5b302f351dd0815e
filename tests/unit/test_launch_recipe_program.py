"""primus_bootstrap.launch.recipes.recipe_program: `primus-cli recipe list|show|explain`."""

from __future__ import annotations

import json

import pytest
import yaml

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.commandline.main import main as primus_cli
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.recipe_program import main

Capture = pytest.CaptureFixture[str]


def test_list_prints_one_line_per_recipe(capsys: Capture) -> None:
    """Without options, every recipe is listed."""
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].split() == ["RECIPE", "LAYOUT", "BATCH", "RECOMPUTE", "EVIDENCE"]
    assert [line.split()[0] for line in lines[1:]] == [item.name for item in catalogue.recipes()]


def test_list_leaves_what_the_options_say(capsys: Capture) -> None:
    """Options are combined."""
    main(["list", "--model", "llama-3.1-405b", "--backend", "megatron", "--gpu", "H100", "--precision", "fp8", "--json"])

    assert [item["name"] for item in json.loads(capsys.readouterr().out)] == ["llama-3.1-405b-megatron-h100-fp8-1024"]


def test_list_shows_layout_and_recompute(capsys: Capture) -> None:
    """The layout is in the short forms of the field."""
    main(["list", "--model", "llama-3.1-405b", "--gpu", "H100", "--precision", "fp8", "--backend", "megatron"])

    assert "TP8 PP8 VPP8 CP2 DP8 distributed optimizer  1536 x 8192, micro 1  none" in capsys.readouterr().out


def test_an_empty_list_says_so(capsys: Capture) -> None:
    """If no recipe is left, stderr says what to do."""
    assert main(["list", "--gpu", "A100"]) == 0
    assert "primus-cli recipe list" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "word", "near"), [("--model", "llama-3.1-80b", "llama-3.1-8b"), ("--gpu", "H10", "H100")])
def test_list_refuses_unknown_names(option: str, word: str, near: str) -> None:
    """A misspelt filter would list nothing; it is an error instead."""
    with pytest.raises(UsageError) as caught:
        main(["list", option, word])

    assert near in caught.value.fix


def test_show_prints_every_setting(capsys: Capture) -> None:
    """The output is YAML with all fields."""
    main(["show", "llama-3.1-70b-megatron-mi300x-bf16-64"])
    found = yaml.safe_load(capsys.readouterr().out)

    assert found["recompute"] == {"kind": "full", "layers": 12}
    assert found["layout"]["data"] == "fsdp"
    assert found["keys"]["use_rope_scaling"] is True
    assert found["source"].startswith("https://github.com/AMD-AGI/Primus/blob/")


def test_show_of_a_model_chooses_its_recipe(capsys: Capture) -> None:
    """A model's name and the GPUs stand for the recipe."""
    main(["show", "llama-3.1-70b", "--gpu", "MI300X", "--gpus", "128", "--backend", "megatron", "--json"])

    assert json.loads(capsys.readouterr().out)["name"] == "llama-3.1-70b-megatron-mi300x-bf16-128"


def test_options_with_a_recipe_are_refused() -> None:
    """A recipe is already chosen; the fix is the command with the model."""
    with pytest.raises(UsageError) as caught:
        main(["show", "llama-3.1-8b-megatron-mi300x-bf16-8", "--gpus", "64"])

    assert caught.value.fix == "primus-cli recipe show llama-3.1-8b --gpus 64"


@pytest.mark.parametrize(
    ("name", "fix"),
    [("lama-3.1-8b", "did you mean llama-3.1-8b?"), ("xyz", "primus-cli recipe list")],
)
def test_unknown_recipes(name: str, fix: str) -> None:
    """The nearest name of all models and recipes, or the command that lists them."""
    with pytest.raises(UsageError) as caught:
        main(["show", name])

    assert caught.value.fix == fix


def test_explain_says_why_and_what_it_is_based_on(capsys: Capture) -> None:
    """The text has each choice with its meaning, the settings of the backend, the reason, the source and the evidence."""
    main(["explain", "llama-3.1-405b-megatron-mi325x-fp8-64"])
    text = capsys.readouterr().out

    for part in (
        "tensor: 8\n",
        "15 to 16 layers per stage",
        "megatron.decoder_first_pipeline_num_layers: 15",
        "why\n",
        "evidence: published",
    ):
        assert part in text
    assert "blob/fd1eeabbad15135e3702094087e96142b4b4eacb/docs/02-user-guide/megatron-lm-training.md" in text


def test_explain_as_json(capsys: Capture) -> None:
    """The same as data."""
    main(["explain", "deepseek-v2-lite-maxtext-mi325x-fp8-8", "--json"])
    found = json.loads(capsys.readouterr().out)

    assert found["evidence"] == "limited by a real out-of-memory"
    assert {"name": "expert", "value": "8"}.items() <= next(item for item in found["choices"] if item["name"] == "expert").items()


def test_primus_cli_has_the_verb(capsys: Capture) -> None:
    """`primus-cli recipe` runs this program, and its errors end with exit code 2."""
    assert primus_cli(["recipe", "show", "llama-3.1-8b"]) == 0
    assert "name: llama-3.1-8b-megatron" in capsys.readouterr().out
    assert primus_cli(["recipe", "show", "nothing"]) == 2
