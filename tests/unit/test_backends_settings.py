"""primus_bootstrap.launch.backends: the settings of a backend are checked offline, and described as a recipe and a shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import PlanError, PrimusError, UsageError
from primus_bootstrap.launch.backends.common_settings import common_settings
from primus_bootstrap.launch.backends.contract import Run
from primus_bootstrap.launch.backends.key_table import read_keys, unknown_key
from primus_bootstrap.launch.backends.registry import POSTTRAINING, backend, backends
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.tasks import Program, Request
from primus_bootstrap.launch.training import training_task as training

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "workloads"


def request(cwd: Path, *arguments: str, ranks: int = 0, gpu: str = "") -> Request:
    """Return a request with these arguments."""
    return Request(arguments, "python3", lambda: WORKLOADS, cwd=cwd, run_dir=cwd / "run", ranks=ranks, gpu=gpu)


def refused(cwd: Path, *arguments: str, ranks: int = 0) -> PrimusError:
    """Return the error of these arguments."""
    with pytest.raises(PrimusError) as raised:
        training.program(request(cwd, *arguments, ranks=ranks), "pretrain.py", backends=True)
    return raised.value


def program(cwd: Path, *arguments: str, ranks: int = 0, gpu: str = "") -> Program:
    """Return the program of these arguments."""
    return training.program(request(cwd, *arguments, ranks=ranks, gpu=gpu), "pretrain.py", backends=True)


def option(found: Program, name: str) -> str:
    """Return the value of an option on the command line of the backend."""
    return found.arguments[found.arguments.index(name) + 1]


@pytest.mark.parametrize(
    ("argument", "what", "fix"),
    [
        ("megatron.recompute_num_layer=4", "no such setting of megatron 0.19.2", "did you mean megatron.recompute_num_layers?"),
        ("recompute_num_layers=4", "no such setting", "did you mean megatron.recompute_num_layers?"),
        ("megatron.moe_grouped_gem=true", "no such setting of megatron 0.19.2", "did you mean megatron.moe_grouped_gemm?"),
        ("megatron.moe_grouped_gemm=yes", "found 'yes'", "give true or false"),
        ("megatron.num_workers=two", "found 'two'", "give a whole number"),
        ("megatron.init_method_std=wide", "found 'wide'", "give a number"),
        ("megatron.transformer_impl=te", "found 'te'", "choose from: local, transformer_engine, inference_optimized"),
        ("megatron.train_iters=many", "found 'many'", "give a whole number"),
        ("train.stepz=3", "no such setting", "did you mean train.steps?"),
        ("parallel.pipelin=2", "no such setting", "did you mean parallel.pipeline?"),
        ("parallel.pipeline=0", "found '0'", "give 1 or more"),
        ("compute.compile=true", "megatron has no such setting", "remove it, or set one of megatron's own: megatron.NAME"),
    ],
)
def test_a_wrong_setting_of_a_backend_is_an_error_with_the_nearest_name(argument: str, what: str, fix: str, tmp_path: Path) -> None:
    """Nothing of the backend is installed here."""
    error = refused(tmp_path, "--config", "debug-dense", "backend=megatron", argument)

    assert (error.what, error.fix) == (f"argument {argument}: {argument.partition('=')[0]}: {what}", fix)


def test_a_key_with_one_letter_less_is_refused_with_a_hint() -> None:
    """A renamed key must not be ignored: the hint names an existing key. tests/backends tries every key."""
    known = read_keys("megatron", "0.19.2")
    assert len(known) > 600
    for name in list(known)[::20]:
        wrong = name[:-1]
        if wrong in known:
            continue
        near = unknown_key(wrong, known).removeprefix("did you mean ").removesuffix("?")
        assert near in known, wrong


def test_a_misspelt_backend_or_name_is_an_error(tmp_path: Path) -> None:
    """A preset, a recipe and a model are known names."""
    assert refused(tmp_path, "--config", "debug-dense", "backend=megatro").fix == "did you mean megatron?"
    error = refused(tmp_path, "--config", "llama-3.1-70", "backend=megatron")
    assert error.what == "--config llama-3.1-70: no such file, recipe, model or preset"
    assert error.fix.startswith("did you mean llama-3.1-70b")


def test_print_settings_does_not_start_a_backend(tmp_path: Path) -> None:
    """The native trainer prints its settings and ends; a backend would train."""
    with pytest.raises(UsageError, match="--print-settings is of the native trainer"):
        training.check(request(tmp_path, "--print-settings", "--config", "debug-dense", "backend=megatron"))


def test_a_model_without_a_backend_names_the_backends(tmp_path: Path) -> None:
    """The native trainer has presets only."""
    with pytest.raises(UsageError) as raised:
        training.check(request(tmp_path, "--config", "llama-3.1-70b"))
    assert raised.value.fix == "add backend=NAME to train this model on a backend: megatron, torchtitan, maxtext"


def test_a_model_chooses_the_recipe_for_the_gpus(tmp_path: Path) -> None:
    """The user's settings replace the values of the recipe."""
    found = program(tmp_path, "--config", "llama-3.1-8b", "backend=megatron", "train.steps=100", "optimizer.lr=1e-4", ranks=8, gpu="MI300X")
    facts = json.loads(dict(found.files)[str(tmp_path / "run" / "backend.json")])

    assert facts["recipe"].startswith("llama-3.1-8b-megatron-mi300x")
    assert (option(found, "--num-layers"), option(found, "--train-iters"), option(found, "--lr")) == ("32", "100", "0.0001")
    assert facts["parameters"] == 8_030_261_248


def test_a_file_states_backend_model_and_own_keys(tmp_path: Path) -> None:
    """A list and a key that has a common name."""
    (tmp_path / "run.yaml").write_text(
        "backend: megatron\nmodel: llama-3.1-8b\ntrain: {steps: 7}\nmegatron:\n  seq_length: 4096\n  recompute_modules: [core_attn, mlp]\n"
        "  use_flash_attn: true\n"
    )
    found = program(tmp_path, "--config", "run.yaml", ranks=8, gpu="MI300X")

    assert (option(found, "--train-iters"), option(found, "--seq-length")) == ("7", "4096")
    start = found.arguments.index("--recompute-modules")
    assert found.arguments[start : start + 3] == ("--recompute-modules", "core_attn", "mlp")
    assert "--use-flash-attn" in found.arguments


def test_a_layout_that_does_not_suit_the_ranks_is_refused(tmp_path: Path) -> None:
    """It is a problem of this machine once the ranks are known."""
    error = refused(tmp_path, "--config", "debug-dense", "backend=megatron", "parallel.tensor=2", "parallel.pipeline=2", ranks=2)

    assert isinstance(error, PlanError)
    assert "2 GPUs are no multiple of tensor x pipeline x context = 4" in error.what


def test_experts_on_several_ranks_are_accepted_where_the_ranks_are_not_known(tmp_path: Path) -> None:
    """The command may be typed on another machine than the one that runs it."""
    arguments = ("--config", "debug-moe", "backend=megatron", "parallel.expert=2")
    assert option(program(tmp_path, *arguments), "--expert-model-parallel-size") == "2"
    assert "expert x pipeline" in refused(tmp_path, *arguments, ranks=1).what


@pytest.mark.parametrize("name", sorted(set(backends()) - set(POSTTRAINING)))
def test_a_recipe_with_a_setting_that_the_version_lacks_is_refused(name: str, tmp_path: Path) -> None:
    """A recipe can be older than the pinned version. The key is named, and nothing is rendered."""
    adapter, recipe = backend(name), next(item for item in catalogue.recipes() if item.backend == name)
    settings = {key: item.default for key, item in common_settings(WORKLOADS).items()}
    outdated = replace(recipe, keys={**recipe.keys, "no_such_key": 1})
    with pytest.raises(UsageError) as raised:
        adapter.render(Run(outdated, catalogue.model(recipe.model), settings, {}, tmp_path))
    assert raised.value.what == f"the recipe {recipe.name} has settings that {name} {adapter.version} does not have: no_such_key"
    assert "primus-cli recipe list" in raised.value.fix


def test_the_native_trainer_gets_its_arguments_unchanged(tmp_path: Path) -> None:
    """Without a backend, or with backend=native."""
    for arguments in (("--config", "debug-dense"), ("--config", "debug-dense", "backend=native")):
        assert training.check(request(tmp_path, *arguments)) == ()
        assert program(tmp_path, *arguments) == Program((str(WORKLOADS / "train" / "pretrain.py"),), arguments)


def test_each_backend_supports_only_common_settings_that_exist() -> None:
    """A misspelt name in an adapter would refuse a setting of the user."""
    known = common_settings(WORKLOADS)
    for item in backends().values():
        assert item.supported <= set(known), item.name
        assert set(item.same.values()) <= item.supported
        assert set(item.same) <= set(item.known_keys())
        assert backend(item.name) is item


def test_a_layout_of_the_pipeline_by_the_user_decides_whether_the_layers_divide(tmp_path: Path) -> None:
    """Three layers do not divide by two stages, unless the first one gets one of them."""
    arguments = ("--config", "debug-dense", "backend=megatron", "parallel.pipeline=2", "model.layers=3", "train.global_batch=8")
    assert "3 layers are no multiple of 2 chunks" in refused(tmp_path, *arguments, ranks=2).what
    found = program(tmp_path, *arguments, "megatron.decoder_first_pipeline_num_layers=1", ranks=2)
    assert option(found, "--decoder-first-pipeline-num-layers") == "1"


def test_a_run_that_does_not_fit_is_refused_if_the_gpu_is_known(tmp_path: Path) -> None:
    """Where the command is typed, the GPUs may be those of other nodes."""
    arguments = ("--config", "llama-3.1-8b-megatron-mi300x-bf16-8", "train.micro_batch=16")
    with pytest.raises(PlanError, match="does not fit into memory"):
        training.check(request(tmp_path, *arguments, ranks=8, gpu="MI300X"))
    with pytest.raises(PlanError, match="does not fit into memory"):
        training.check(request(tmp_path, *arguments, "gpu=MI300X"))
    remarks = training.check(request(tmp_path, *arguments))
    assert any("estimate: does not fit" in remark and "may end out of memory" in remark for remark in remarks)
