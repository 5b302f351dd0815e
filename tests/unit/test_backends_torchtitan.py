"""primus_bootstrap.launch.backends.torchtitan: a run becomes the configuration file of TorchTitan."""

from __future__ import annotations

import json
import math
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch.backends.key_table import problem, read_keys, unknown_key
from primus_bootstrap.launch.backends.torchtitan.configuration import toml
from primus_bootstrap.launch.recipes import catalogue
from tests.unit.test_backends_settings import program, refused

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.tasks import Program

KNOWN = read_keys("torchtitan", "0.2.2")
DENSE = ("--config", "debug-dense", "backend=torchtitan")


def configuration(found: Program) -> dict[str, Any]:
    """Return the values of the configuration file, by section and key."""
    return tomllib.loads(next(text for path, text in found.files if path.endswith(".toml")))


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values by their full names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return found


def test_a_small_model_is_rendered(tmp_path: Path) -> None:
    """The program, its files, and the values of the preset; without a stated strategy, everything is sharded."""
    found = program(tmp_path, *DENSE, ranks=2)
    values = flat(configuration(found))

    assert found.argv[0].endswith("workloads/backends/torchtitan/pretrain.py")
    run = tmp_path / "run"
    assert found.arguments == ("--run", str(run / "backend.json"), "--", str(run / "torchtitan.toml"), str(run / "torchtitan_model.json"))
    assert values["training.seq_len"] == 64
    assert (values["training.local_batch_size"], values["training.global_batch_size"]) == (2, 8)
    assert (values["parallelism.data_parallel_shard_degree"], values["parallelism.data_parallel_replicate_degree"]) == (2, 1)
    assert values["training.mixed_precision_param"] == "float32"
    assert values["checkpoint.folder"] == str(run / "checkpoints")
    assert (values["checkpoint.interval"], values["checkpoint.load_only"], values["checkpoint.keep_latest_k"]) == (5, False, 0)
    assert "checkpoint.initial_load_path" not in values
    shape = json.loads(dict(found.files)[str(run / "torchtitan_model.json")])
    hidden = int(shape["ffn_dim_multiplier"] * int(2 * 4 * shape["dim"] / 3))  # FeedForward in torchtitan/models/llama3/model/model.py
    assert shape["multiple_of"] * math.ceil(hidden / shape["multiple_of"]) == 192
    assert (shape["dim"], shape["n_layers"], shape["n_kv_heads"], shape["vocab_size"]) == (64, 2, 2, 512)


def test_the_layout_is_rendered(tmp_path: Path) -> None:
    """A pipeline divides the batch of a rank; its micro-batch is a setting of its own."""
    words = ("parallel.pipeline=2", "parallel.shards=2", "train.global_batch=16", "torchtitan.parallelism.fsdp_reshard_after_forward=never")
    more = ("torchtitan.parallelism.pipeline_parallel_first_stage_less_layers=0", "model.layers=4")
    last = "torchtitan.parallelism.pipeline_parallel_last_stage_less_layers=0"
    values = configuration(program(tmp_path, *DENSE, *words, *more, last, ranks=8))

    assert values["parallelism"]["data_parallel_shard_degree"] == 2
    assert values["parallelism"]["data_parallel_replicate_degree"] == 2
    assert values["parallelism"]["pipeline_parallel_degree"] == 2
    assert values["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert values["parallelism"]["fsdp_reshard_after_forward"] == "never"
    assert values["training"]["local_batch_size"] == 4


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        (("compute.recompute=full",), "activation_checkpoint.mode", "full"),
        (("compute.recompute=selective",), "activation_checkpoint.selective_ac_option", "op"),
        ((), "activation_checkpoint.mode", "none"),
        (("compute.precision=fp8",), "model.converters", ["quantize.linear.float8"]),
        (("train.clip_norm=0",), "training.max_norm", math.inf),
        (("torchtitan.training.max_norm=2",), "training.max_norm", 2.0),
        ((), "checkpoint.async_mode", "disabled"),
        (("checkpoint.asynchronous=true",), "checkpoint.async_mode", "async"),
        (("torchtitan.checkpoint.async_mode=async",), "checkpoint.async_mode", "async"),
        (("checkpoint.every_steps=0", "checkpoint.at_end=false"), "checkpoint.enable", False),
        (("checkpoint.start_from=/other/checkpoints",), "checkpoint.initial_load_model_only", True),
        (("checkpoint.resume=/other/step-5",), "checkpoint.initial_load_path", "/other/step-5"),
        (("checkpoint.resume=/other/step-5",), "checkpoint.initial_load_model_only", False),
        (("parallel.strategy=ddp",), "parallelism.data_parallel_shard_degree", 1),
    ],
)
def test_common_settings_have_the_names_of_torchtitan(words: tuple[str, ...], name: str, expected: Any, tmp_path: Path) -> None:
    """The user's own names of TorchTitan replace computed values."""
    assert flat(configuration(program(tmp_path, *DENSE, *words, ranks=2)))[name] == expected


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("parallel.strategy=distributed_optimizer",), "does not shard the optimizer's state alone"),
        (("compute.recompute_layers=1",), "torchtitan has no such setting"),
        (("torchtitan.training.seqlen=64",), "no such setting of torchtitan 0.2.2"),
        (("torchtitan.activation_checkpoint.mode=some",), "found 'some'"),
        (("torchtitan.training.steps=many",), "found 'many'"),
    ],
)
def test_what_torchtitan_does_not_have_is_an_error(words: tuple[str, ...], what: str, tmp_path: Path) -> None:
    """Nothing of the backend is installed here."""
    assert what in refused(tmp_path, *DENSE, *words, ranks=2).what


def test_experts_need_a_name_of_torchtitan(tmp_path: Path) -> None:
    """Its Llama models have none."""
    error = refused(tmp_path, "--config", "debug-moe", "backend=torchtitan")

    assert "no experts" in error.what
    assert "torchtitan.model.flavor" in error.fix


def test_a_misspelt_key_gets_the_nearest_name() -> None:
    """Every key with a letter less."""
    assert len(KNOWN) > 130
    for name in KNOWN:
        if name[:-1] not in KNOWN:
            assert unknown_key(name[:-1], KNOWN).removeprefix("did you mean ").removesuffix("?") in KNOWN, name


def test_texts_are_written_as_toml() -> None:
    """Quotes, lists of lists and infinity."""
    chosen = {"job.description": 'a "b" \\ é', "parallelism.module_fqns_per_model_part": [["a"], ["b"]], "training.max_norm": math.inf}
    expected = {"job": {"description": 'a "b" \\ é'}, "parallelism": {"module_fqns_per_model_part": [["a"], ["b"]]}}

    assert tomllib.loads(toml({**chosen, "checkpoint.initial_load_path": None})) == {**expected, "training": {"max_norm": math.inf}}


@pytest.mark.parametrize("name", [item.name for item in catalogue.recipes() if item.backend == "torchtitan"])
def test_every_recipe_is_rendered_with_known_keys(name: str, tmp_path: Path) -> None:
    """The keys and their values fit the key table. The tests of the backend pass them through the real parser."""
    recipe = catalogue.recipe(name)
    found = program(tmp_path, "--config", name, ranks=recipe.layout.gpus, gpu=recipe.gpu)
    values = flat(configuration(found))

    assert set(values) <= set(KNOWN)
    assert [problem(KNOWN[key], value) for key, value in values.items() if not math.isinf(value if isinstance(value, float) else 0)] == [
        ("", "")
    ] * len(values)
    assert len(found.files) == 2  # backend.json and the configuration: the model has a name
    assert values["training.global_batch_size"] == recipe.batch.all
