"""primus_bootstrap.launch.backends.megatron: a run becomes the command line of Megatron-LM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.backends.key_table import read_keys
from primus_bootstrap.launch.backends.megatron import arguments
from primus_bootstrap.launch.recipes import catalogue
from tests.unit.test_backends_settings import option, program

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = read_keys("megatron", "0.19.2")


def rendered(cwd: Path, *words: str, ranks: int = 0) -> tuple[str, ...]:
    """Return the arguments of Megatron-LM for a small model."""
    return program(cwd, "--config", "debug-dense", "backend=megatron", *words, ranks=ranks).arguments[3:]


def test_a_small_model_is_rendered(tmp_path: Path) -> None:
    """The program, the file with the facts, and the values of the preset."""
    found = program(tmp_path, "--config", "debug-dense", "backend=megatron", ranks=1)

    assert found.argv[0].endswith("workloads/backends/megatron/pretrain.py")
    assert found.arguments[:3] == ("--run", str(tmp_path / "run" / "backend.json"), "--")
    values = ("--hidden-size", "--num-query-groups", "--micro-batch-size", "--global-batch-size", "--save", "--persistent-save-interval")
    assert [option(found, name) for name in values] == ["64", "2", "2", "8", str(tmp_path / "run" / "checkpoints"), "5"]
    assert {"--swiglu", "--disable-bias-linear", "--mock-data", "--exit-signal-handler", "--use-distributed-optimizer"} <= set(
        found.arguments
    )
    assert "--bf16" not in found.arguments
    assert found.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert found.last_rank_logs


def test_the_layout_is_rendered(tmp_path: Path) -> None:
    """Sequence parallelism comes with tensor parallelism."""
    words = rendered(tmp_path, "parallel.tensor=2", "parallel.pipeline=2", "compute.precision=bf16", ranks=4)

    assert {"--sequence-parallel", "--bf16"} <= set(words)
    assert words[words.index("--pipeline-model-parallel-size") + 1] == "2"


def test_fsdp_needs_several_queues(tmp_path: Path) -> None:
    """Megatron-LM refuses FSDP with one queue, and fused gradient accumulation with FSDP."""
    found = program(tmp_path, "--config", "debug-dense", "backend=megatron", "parallel.strategy=fsdp", ranks=2)

    assert int(found.environment["CUDA_DEVICE_MAX_CONNECTIONS"]) > 1
    assert {"--use-torch-fsdp2", "--no-gradient-accumulation-fusion"} <= set(found.arguments)
    assert "--use-distributed-optimizer" not in found.arguments


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("compute.recompute=selective",), ("--recompute-granularity", "selective")),
        (
            ("compute.recompute_layers=1",),
            ("--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "1"),
        ),
        (
            ("megatron.recompute_num_layers=1",),
            ("--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "1"),
        ),
        (("compute.recompute=full",), ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")),
    ],
)
def test_recompute_is_rendered(words: tuple[str, ...], expected: tuple[str, ...], tmp_path: Path) -> None:
    """A number of layers implies full recomputation."""
    found = rendered(tmp_path, *words)
    start = found.index("--recompute-granularity")

    assert found[start : start + len(expected)] == expected


def test_checkpoints_can_be_switched_off(tmp_path: Path) -> None:
    """Benchmarks write none."""
    assert "--save" not in rendered(tmp_path, "checkpoint.every_steps=0", "checkpoint.at_end=false")
    words = rendered(tmp_path, "checkpoint.every_steps=0", "train.steps=9")
    assert words[words.index("--persistent-save-interval") + 1] == "9"


def test_checkpoints_in_the_background_use_the_writer_that_the_environment_has(tmp_path: Path) -> None:
    """Also by Megatron's own name. Its default writer needs another package."""
    for setting in ("checkpoint.asynchronous=true", "megatron.async_save=true"):
        words = rendered(tmp_path, setting)
        assert {"--async-save", "--use-persistent-ckpt-worker"} <= set(words)
        assert words[words.index("--async-strategy") + 1] == "mcore"
    assert "--async-save" not in rendered(tmp_path)


def test_switches_are_rendered_by_their_option() -> None:
    """A switch that is on by default has an option that switches it off."""
    chosen = {"add_bias_linear": False, "swiglu": True, "bf16": False, "masked_softmax_fusion": True, "recompute_modules": ["mlp", "moe"]}

    assert arguments.words(chosen, KNOWN) == ("--disable-bias-linear", "--swiglu", "--recompute-modules", "mlp", "moe")


def test_a_switch_without_an_option_to_switch_it_off_is_an_error() -> None:
    """It would be ignored."""
    fixed = next(key for key in KNOWN.values() if key.kind == "bool" and key.default is True and key.off)
    always_on = {fixed.name: type(fixed)(fixed.name, "bool", True, (), "--on")}  # noqa: FBT003 - the default of the key

    with pytest.raises(PrimusError, match="cannot be switched off"):
        arguments.words({fixed.name: False}, always_on)


@pytest.mark.parametrize("name", [item.name for item in catalogue.recipes() if item.backend == "megatron"])
def test_every_recipe_is_rendered_with_known_options(name: str, tmp_path: Path) -> None:
    """The options of the command line are those of the key table. The tests of the backend pass them through the real parser."""
    recipe = catalogue.recipe(name)
    words = program(tmp_path, "--config", name, ranks=recipe.layout.gpus, gpu=recipe.gpu).arguments[3:]
    options = {word for word in words if word.startswith("--")}

    assert options <= {text for key in KNOWN.values() for text in (key.option, key.off)}
    assert words[words.index("--global-batch-size") + 1] == str(recipe.batch.all)
