"""primus_bootstrap.launch.primus_config.backend_conversion: `config convert` of experiment files of AMD Primus to a backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.backends.check import check
from primus_bootstrap.launch.backends.common_settings import common_settings
from primus_bootstrap.launch.backends.registry import backend
from primus_bootstrap.launch.commandline.main import main
from primus_bootstrap.launch.primus_config.backend_conversion import convert_to_backend
from primus_bootstrap.launch.primus_config.convert import configuration
from primus_bootstrap.launch.primus_config.experiment import read_experiment
from primus_bootstrap.launch.programs import settings_file
from primus_bootstrap.launch.recipes import catalogue

if TYPE_CHECKING:
    from primus_bootstrap.launch.primus_config.conversion import Conversion

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4L"
RULES = yaml.safe_load((ROOT / "primus_bootstrap/launch/data/primus_backends.yml").read_text())


def experiment(framework: str, model: str, overrides: str) -> str:
    """Return the text of an experiment file."""
    return (
        f"modules: {{pre_trainer: {{framework: {framework}, config: pre_trainer.yaml, model: {model}.yaml, overrides: {{{overrides}}}}}}}\n"
    )


def converted(folder: Path, text: str) -> Conversion:
    """Convert the text of an experiment file."""
    path = folder / "exp.yaml"
    path.write_text(text)
    return convert_to_backend(read_experiment(path, {}))


def settings(folder: Path, overrides: str, framework: str = "megatron", model: str = "llama3.1_8B") -> dict[str, Any]:
    """Return the settings of an experiment by dotted name."""
    return {item.setting: item.value for item in converted(folder, experiment(framework, model, overrides)).kept}


def test_a_known_model_is_named_and_the_layout_is_complete(tmp_path: Path) -> None:
    """Outside a checkout, the model's name stands for its shape; what a recipe would decide is stated, so that it cannot differ."""
    found = converted(
        tmp_path, experiment("megatron", "llama3.1_70B", "train_iters: 9, tensor_model_parallel_size: 8, seq_length: 4096")
    ).settings()

    assert (found["backend"], found["model"]) == ("megatron", "llama-3.1-70b")
    assert found["parallel"] == {"context": 1, "expert": 1, "pipeline": 1, "strategy": "distributed_optimizer", "tensor": 8}
    assert (found["train"], found["compute"]) == ({"sequence_length": 4096, "steps": 9}, {"recompute": "none"})


def test_settings_of_the_backend_are_kept_below_its_name(tmp_path: Path) -> None:
    """The pinned version knows them; a single value of a list becomes one."""
    found = settings(tmp_path, "moe_router_score_function: sigmoid, moe_aux_loss_coeff: 0.1, num_experts: 8, manual_gc: true")

    assert found["megatron.moe_router_score_function"] == "sigmoid"
    assert found["megatron.moe_aux_loss_coeff"] == [0.1]
    assert found["megatron.manual_gc"] is True


def test_a_changed_shape_goes_to_the_backend(tmp_path: Path) -> None:
    """With the model's name, a smaller number of layers is a setting of the backend, which wins over the model."""
    found = settings(tmp_path, "num_layers: 4")

    assert (found["model"], found["megatron.num_layers"]) == ("llama-3.1-8b", 4)
    assert "model.layers" not in found


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("use_turbo_attention", "true", "Primus-Turbo"),
        ("wandb_project", "x", "steps.jsonl"),
        ("no_fp8_weight_transpose_cache", "true", "the pinned version of megatron has no such setting"),
        ("cross_entropy_fusion_impl", "te", "megatron-core 0.19.2 refuses"),
        ("GPU_MAX_HW_QUEUES", "2", "--env"),
        ("fp8_recipe", "own", "megatron does not accept it: choose from"),
        ("moe_router_topk", "null", ""),
    ],
)
def test_what_the_backend_does_not_have_is_listed_with_the_reason(tmp_path: Path, name: str, value: str, reason: str) -> None:
    """Kernels, trackers and patches of AMD Primus, and values that the backend refuses; null is not set."""
    found = converted(tmp_path, experiment("megatron", "llama3.1_8B", f"fp8: hybrid, {name}: {value}"))
    dropped = {item.name: item.reason for item in found.dropped}

    assert reason in dropped[name] if reason else name in found.unchanged


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("bf16: true", {"compute.precision": "bf16"}),
        ("fp8: hybrid, bf16: true", {"compute.precision": "fp8"}),
        ("fp8: e4m3, fp8_recipe: tensorwise", {"compute.precision": "fp8", "megatron.fp8": "e4m3", "megatron.fp8_recipe": "tensorwise"}),
        ("fp8: e4m3, fp8_recipe: mxfp8", {"compute.precision": "mxfp8"}),
        ("use_torch_fsdp2: true, use_distributed_optimizer: false", {"parallel.strategy": "fsdp"}),
        ("use_distributed_optimizer: false", {"parallel.strategy": "ddp"}),
        (
            "recompute_granularity: full, recompute_method: block, recompute_num_layers: 5",
            {"compute.recompute": "full", "compute.recompute_layers": 5},
        ),
        ("recompute_granularity: full, recompute_method: block, recompute_num_layers: 0", {"compute.recompute": "none"}),
        (
            "recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 2",
            {"compute.recompute": "full", "compute.recompute_layers": 2, "megatron.recompute_method": "uniform"},
        ),
        (
            f"pipeline_model_parallel_size: 4, pipeline_model_parallel_layout: '{LAYOUT}'",
            {"parallel.pipeline": 4, "parallel.virtual_pipeline": 2, "megatron.pipeline_model_parallel_layout": LAYOUT},
        ),
        ("disable_last_saving: true, save_interval: 7", {"checkpoint.at_end": False, "checkpoint.every_steps": 7}),
        ("lr: 1.0e-4, min_lr: 1.0e-5", {"optimizer.lr": 1e-4, "optimizer.min_lr_ratio": 0.1}),
        ("lr_decay_style: cosine", {}),
        ("lr_decay_style: linear", {"megatron.lr_decay_style": "linear"}),
    ],
)  # fmt: skip
def test_settings_that_belong_together(tmp_path: Path, overrides: str, expected: dict[str, Any]) -> None:
    """Precision, strategy, recompute, pipeline, checkpoints and schedule follow from several settings each."""
    found = settings(tmp_path, overrides)
    relevant = ("compute.", "megatron.", "checkpoint.", "optimizer.")
    default = {"compute.recompute": "none"}

    assert {**default, **{name: value for name, value in found.items() if name.startswith(relevant) or name in expected}} == {
        **default,
        **expected,
    }


def test_a_torchtitan_experiment(tmp_path: Path) -> None:
    """Common settings, the backend's own by their dotted names, the batch of a GPU times eight, and FP8 from the converters."""
    overrides = (
        "training: {local_batch_size: 6, steps: 3, gc_freq: 100}, parallelism: {tensor_parallel_degree: 2}, checkpoint: {enable: false},"
        " model: {converters: [primus_turbo, quantize.linear.float8]}, primus_turbo: {enable_primus_turbo: true}"
    )
    found = settings(tmp_path, overrides, "torchtitan", "llama3.1_8B-fp8")

    assert (found["backend"], found["model"], found["compute.precision"]) == ("torchtitan", "llama-3.1-8b", "fp8")
    assert (found["train.global_batch"], found["parallel.tensor"], found["parallel.strategy"]) == (48, 2, "fsdp")
    assert (found["checkpoint.every_steps"], found["checkpoint.at_end"]) == (0, False)
    assert found["torchtitan.training.gc_freq"] == 100


def test_a_maxtext_experiment(tmp_path: Path) -> None:
    """Axes of a node become the layout; the policy of rematerialization becomes recompute and stays as the backend's own."""
    overrides = (
        "steps: 5, per_device_batch_size: 3, ici_expert_parallelism: -1, ici_fsdp_parallelism: 1, remat_policy: minimal,"
        " quantization: nanoo_fp8, enable_checkpointing: false"
    )
    found = settings(tmp_path, overrides, "maxtext", "mixtral_8x7B")

    assert (found["model"], found["parallel.expert"], found["parallel.strategy"]) == ("mixtral-8x7b", 8, "ddp")
    assert (found["compute.precision"], found["compute.recompute"]) == ("fp8", "selective")
    assert (found["maxtext.quantization"], found["maxtext.remat_policy"]) == ("nanoo_fp8", "minimal")
    assert (found["checkpoint.every_steps"], found["train.global_batch"]) == (0, 24)


@pytest.mark.parametrize(
    ("framework", "overrides"),
    [
        ("megatron", "train_iters: 5, pipeline_model_parallel_size: 2"),
        ("torchtitan", "training.steps: 5, parallelism.pipeline_parallel_degree: 1"),
        ("maxtext", "steps: 5, ici_expert_parallelism: -1, ici_pipeline_parallelism: 1, ici_tensor_parallelism: 2"),
        ("maxtext", "steps: 5, ici_expert_parallelism: 4"),
    ],
)
def test_a_converted_file_passes_the_check_of_its_backend(tmp_path: Path, framework: str, overrides: str) -> None:
    """Also what is assumed, and what the backend calls by a common name."""
    found = converted(tmp_path, experiment(framework, "mixtral_8x7B", overrides))
    given = settings_file.from_yaml(configuration(found, Path("exp.yaml")), "new.yaml")
    checked = check(backend(framework), ROOT / "workloads", [item for item in given if item.name not in ("about", "backend", "model")])

    assert checked.stated["train.steps"] == 5


def test_a_model_without_recipes_keeps_its_own_name(tmp_path: Path) -> None:
    """TorchTitan and MaxText know models by name; a note says that there is no recipe."""
    found = converted(tmp_path, experiment("maxtext", "gemma2_9b", "model_name: gemma2-9b, steps: 2"))

    assert {item.setting: item.value for item in found.kept}["maxtext.model_name"] == "gemma2-9b"
    assert "the model gemma2_9b has no recipe here; the backend takes it by its own name" in found.notes


def test_a_model_that_the_pinned_version_lacks_is_left_out(tmp_path: Path) -> None:
    """The reason names the setting; the value is not passed on to fail later."""
    found = converted(tmp_path, experiment("maxtext", "grok1", "model_name: grok-1, steps: 2"))

    assert "maxtext.model_name" not in {item.setting for item in found.kept}
    assert "model_name" in {item.name for item in found.dropped}


def test_presets_of_a_checkout_describe_the_model(tmp_path: Path) -> None:
    """The shape comes from the model's preset. Of presets, only what differs from the backend's default and has an effect is kept."""
    configs = tmp_path / "primus/configs"
    shape = "num_layers: 12\nhidden_size: 768\nnum_attention_heads: 12\nvocab_size: 1000\nqk_layernorm: true\nmscale: 9\n"
    trainer = "lr: 2.0e-5\nadam_beta2: 0.999\nmuon_momentum: 0.3\noverlap_grad_reduce: true\nadd_qkv_bias: false\n"
    for name, text in {"models/megatron/own.yaml": shape, "modules/megatron/pre_trainer.yaml": trainer}.items():
        (configs / name).parent.mkdir(parents=True, exist_ok=True)
        (configs / name).write_text(text)
    found = settings(tmp_path, "train_iters: 9", model="own")

    assert {name: value for name, value in found.items() if name.startswith(("model", "megatron"))} == {
        "model.heads": 12,
        "model.kv_heads": 12,
        "model.layers": 12,
        "model.vocabulary": 1000,
        "model.width": 768,
        "megatron.overlap_grad_reduce": True,
        "megatron.qk_layernorm": True,
    }
    assert (found["optimizer.lr"], found["optimizer.beta2"]) == (2e-5, 0.999)


@pytest.mark.parametrize(
    ("experiment_of", "message", "fix"),
    [
        (("megatron_bridge", "llama3.2_1B", ""), "the framework megatron_bridge is no backend here", "--to native"),
        (("diffusion", "flux", ""), "the framework diffusion is no backend here", "megatron, torchtitan, maxtext"),
        (("megatron", "unknown", ""), "the shape of the model unknown is not known", "checkout of AMD Primus"),
        (("megatron", "mamba_370M", "model_type: mamba"), "is of the type mamba", "run it with AMD Primus"),
    ],
)
def test_what_no_backend_trains_is_an_error(tmp_path: Path, experiment_of: tuple[str, str, str], message: str, fix: str) -> None:
    """The fix names another way."""
    with pytest.raises(PlanError) as caught:
        converted(tmp_path, experiment(*experiment_of))

    assert message in caught.value.what
    assert fix in caught.value.fix


def test_the_backend_accepts_the_result(tmp_path: Path) -> None:
    """The settings pass the check of a run."""
    found = converted(
        tmp_path, experiment("megatron", "llama3.1_8B", "train_iters: 3, moe_router_dtype: fp32, fp8: hybrid, manual_gc: true")
    )
    given = settings_file.from_yaml(configuration(found, Path("exp.yaml")), "new.yaml")
    checked = check(backend("megatron"), ROOT / "workloads", given)

    assert (checked.stated["model"], checked.stated["train.steps"]) == ("llama-3.1-8b", 3)
    assert checked.keys["manual_gc"] is True


def test_every_rule_leads_to_a_common_setting() -> None:
    """And every model of the table has recipes."""
    known = common_settings(ROOT / "workloads")
    rules = [rule for part in RULES["frameworks"].values() for rule in part["settings"].values()]
    named = {rule if isinstance(rule, str) else rule["to"] for rule in rules if isinstance(rule, str) or "to" in rule}
    assumed = {name for part in RULES["frameworks"].values() for name in part["assumed"]}

    assert sorted((named | assumed) - set(known)) == []
    assert set(RULES["models"].values()) == set(catalogue.models())


def test_the_backend_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --to, the framework becomes the backend; --to native leaves it out."""
    path = tmp_path / "exp.yaml"
    path.write_text(experiment("megatron", "llama3.1_8B", "train_iters: 3"))

    assert main(["config", "convert", str(path)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["backend"] == "megatron"
    assert main(["config", "convert", str(path), "--to", "native"]) == 0
    assert "backend" not in yaml.safe_load(capsys.readouterr().out)
