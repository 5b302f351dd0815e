"""primus_bootstrap.launch.backends.maxtext: a run becomes the command line of MaxText."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.launch.backends import environments
from primus_bootstrap.launch.backends.key_table import problem, read_keys, unknown_key
from primus_bootstrap.launch.backends.maxtext.configuration import words as command_line
from primus_bootstrap.launch.backends.package_list import needed
from primus_bootstrap.launch.backends.registry import backend
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.run_topology import Topology
from tests.unit.test_backends_settings import program, refused

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.tasks import Program

KNOWN = read_keys("maxtext", "0.2.5")
DENSE = ("--config", "debug-dense", "backend=maxtext", "train.micro_batch=1")


def values(found: Program) -> dict[str, Any]:
    """Return the settings of the command line as MaxText reads them."""
    return {name: yaml.safe_load(text) for name, _, text in (word.partition("=") for word in found.arguments[3:])}


def test_a_small_model_is_rendered(tmp_path: Path) -> None:
    """The program, one process per node, and the values of the preset; without a stated strategy, everything is sharded."""
    found = program(tmp_path, *DENSE, ranks=8)
    chosen = values(found)

    assert found.argv[0].endswith("workloads/backends/maxtext/pretrain.py")
    assert found.arguments[:3] == ("--run", str(tmp_path / "run" / "backend.json"), "--")
    assert found.per_node
    assert (chosen["base_output_directory"], chosen["run_name"]) == (str(tmp_path), "run")
    shape = ("base_emb_dim", "base_num_decoder_layers", "base_num_query_heads", "base_num_kv_heads", "base_mlp_dim", "vocab_size")
    assert [chosen[name] for name in shape] == [64, 2, 4, 2, 192, 512]
    assert (chosen["per_device_batch_size"], chosen["gradient_accumulation_steps"], chosen["max_target_length"]) == (1, 1, 64)
    assert (chosen["ici_fsdp_parallelism"], chosen["dcn_fsdp_parallelism"], chosen["ici_data_parallelism"]) == (-1, -1, 1)
    assert (chosen["dtype"], chosen["weight_dtype"]) == ("float32", "float32")
    assert found.environment["DECOUPLE_GCLOUD"] == "TRUE"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("parallel.tensor=2",), {"ici_tensor_parallelism": 2, "per_device_batch_size": 0.5, "gradient_accumulation_steps": 2}),
        (("parallel.context=2",), {"ici_context_parallelism": 2, "per_device_batch_size": 0.5}),
        (("parallel.strategy=ddp",), {"ici_data_parallelism": -1, "ici_fsdp_parallelism": 1, "dcn_data_parallelism": -1}),
        (("parallel.strategy=distributed_optimizer",), {"shard_optimizer_over_data": True, "ici_data_parallelism": -1}),
        (("parallel.shards=4",), {"ici_fsdp_parallelism": 4, "ici_data_parallelism": -1, "dcn_data_parallelism": -1}),
        (("compute.recompute=full",), {"remat_policy": "full"}),
        ((), {"remat_policy": "none"}),
        (("compute.precision=fp8", "gpu=MI300X"), {"quantization": "nanoo_fp8"}),
        (("compute.precision=fp8", "gpu=H100"), {"quantization": "fp8"}),
        (("checkpoint.every_steps=0", "checkpoint.at_end=false"), {"enable_checkpointing": False}),
        (("train.steps=100", "optimizer.warmup_steps=25"), {"warmup_steps_fraction": 0.25}),
        (("maxtext.remat_policy=save_qkv_proj",), {"remat_policy": "save_qkv_proj"}),
        (("maxtext.steps=7",), {"steps": 7}),
        (("maxtext.dataset_type=grain", "maxtext.grain_train_files=/data/*.arrayrecord"), {"grain_train_files": "/data/*.arrayrecord"}),
    ],
)
def test_common_settings_have_the_names_of_maxtext(words: tuple[str, ...], expected: dict[str, Any], tmp_path: Path) -> None:
    """The user's own names of MaxText replace computed values."""
    chosen = values(program(tmp_path, *DENSE, *words, ranks=8))

    assert {name: chosen[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("parallel.pipeline=2",), "maxtext has no such setting"),
        (("maxtext.per_device_batch_size=2",), "maxtext.per_device_batch_size cannot be set"),
        (("maxtext.run_name=other",), "maxtext.run_name cannot be set"),
        (("maxtext.remat_policy=ful",), "found 'ful'"),
        (("maxtext.step=5",), "no such setting of maxtext 0.2.5"),
        (("maxtext.base_emb_dim=wide",), "found 'wide'"),
        (("compute.precision=mxfp8",), "does not train in mxfp8"),
        (("data.source=files", "data.files=/data/a"), "maxtext"),
        (("train.steps=50", "optimizer.decay_steps=20"), "learning rate of 0"),
    ],
)
def test_what_maxtext_does_not_have_is_an_error(words: tuple[str, ...], what: str, tmp_path: Path) -> None:
    """Nothing of the backend is installed here."""
    assert what in refused(tmp_path, *DENSE, *words, ranks=8).what


def test_experts_are_those_of_mixtral(tmp_path: Path) -> None:
    """The settings describe them."""
    chosen = values(program(tmp_path, "--config", "debug-moe", "backend=maxtext", "parallel.expert=2", ranks=4))

    assert (chosen["decoder_block"], chosen["ici_expert_parallelism"]) == ("mixtral", 2)
    assert chosen["num_experts"] >= 2
    assert chosen["base_moe_mlp_dim"] == chosen["base_mlp_dim"]


def test_a_recipe_for_eight_gpus_fits_other_numbers(tmp_path: Path) -> None:
    """Its axes replace those of the layout only if they suit the number of GPUs."""
    name = "llama-3.1-8b-maxtext-mi300x-bf16-8"
    two_nodes = values(program(tmp_path, "--config", name, ranks=16, gpu="MI300X"))
    half = values(program(tmp_path, "--config", name, ranks=4, gpu="MI300X"))

    assert (two_nodes["ici_fsdp_parallelism"], two_nodes["dcn_data_parallelism"]) == (8, -1)
    assert half["ici_fsdp_parallelism"] == -1


@pytest.mark.parametrize("name", [item.name for item in catalogue.recipes() if item.backend == "maxtext"])
def test_every_recipe_is_rendered_with_known_keys(name: str, tmp_path: Path) -> None:
    """The keys and their values fit the key table. The tests of the backend pass them through the real parser."""
    recipe = catalogue.recipe(name)
    chosen = values(program(tmp_path, "--config", name, ranks=recipe.layout.gpus, gpu=recipe.gpu))

    assert set(chosen) <= set(KNOWN)
    assert {key: problem(KNOWN[key], value) for key, value in chosen.items() if problem(KNOWN[key], value) != ("", "")} == {}
    assert "base_emb_dim" not in chosen  # the model has a name
    assert chosen["per_device_batch_size"] * chosen["gradient_accumulation_steps"] * recipe.layout.gpus == recipe.batch.all


def test_a_misspelt_key_gets_the_nearest_name() -> None:
    """Every key with a letter less."""
    assert len(KNOWN) > 800
    for name in KNOWN:
        if name[:-1] not in KNOWN:
            assert unknown_key(name[:-1], KNOWN).removeprefix("did you mean ").removesuffix("?") in KNOWN, name


def test_values_are_written_so_that_yaml_reads_them_back() -> None:
    """Texts that look like other types, lists, and paths with spaces."""
    chosen = {"a": "true", "b": "x y", "c": ["silu", "linear"], "d": 1e-8, "e": "", "f": "1e3", "g": False, "h": None, "i": "/a=b"}
    found = {name: yaml.safe_load(text) for name, _, text in (word.partition("=") for word in command_line(chosen))}

    assert found == {name: value for name, value in chosen.items() if value is not None} | {"d": found["d"]}
    assert float(found["d"]) == 1e-8


def test_one_process_per_node_uses_all_devices() -> None:
    """The topology keeps their number, so that a hook's new arguments are rendered for the same GPUs."""
    shape = Topology(nnodes=2, nproc=8).per_node()

    assert (shape.nproc, shape.single, shape.devices, shape.all_devices) == (1, True, 8, 16)
    assert Topology(nnodes=2, nproc=8).all_devices == 16


def test_the_packages_for_the_gpus_have_one_release() -> None:
    """JAX ignores a plug-in of another release than jaxlib's."""
    lines = environments.packages(backend("maxtext")).splitlines()
    jaxlib = next(line.split()[0].partition("==")[2] for line in lines if line.startswith("jaxlib=="))

    for vendor in ("amd", "nvidia"):
        found = needed(lines, vendor)
        assert found
        assert {release.partition("==")[2] for release in found.values()} == {jaxlib}
    assert needed(lines, "") == {}
