"""primus_bootstrap.launch.primus_config: `config convert --to native` of experiment files of AMD Primus, and the verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.commandline.main import main
from primus_bootstrap.launch.primus_config.conversion import Conversion, convert
from primus_bootstrap.launch.primus_config.experiment import read_experiment
from workloads.train.load_settings import known_settings, load_settings

DATA = Path(__file__).resolve().parents[2] / "primus_bootstrap/launch/data"
MEGATRON = """
work_group: ${PRIMUS_TEAM:amd}
exp_name: ${PRIMUS_EXP_NAME:llama}
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:llama3.1_8B}.yaml
    overrides:
      wandb_project: demo
      train_iters: 50
      micro_batch_size: 2
      global_batch_size: 128
      seq_length: ${PRIMUS_SEQ_LENGTH:8192}
      lr: 1e-5
      min_lr: 1.0e-6
      lr_decay_iters: null
      lr_decay_style: cosine
      clip_grad: 0.5
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: 2
      mock_data: true
      disable_last_saving: true
      recompute_granularity: full
      fp8: hybrid
      some_new_setting: 3
"""
TORCHTITAN = """
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: llama3.1_70B-fp8.yaml
    overrides:
      training: {local_batch_size: 4, seq_len: 4096, steps: 20, mock_data: false}
      parallelism: {tensor_parallel_degree: 8, data_parallel_shard_degree: 1}
      activation_checkpoint: {mode: selective}
      metrics: {log_freq: 1, enable_wandb: true}
"""
MAXTEXT = """
env: {XLA_FLAGS: "--xla"}
modules:
  pre_trainer:
    framework: maxtext
    config: pre_trainer.yaml
    model: mixtral_8x7B.yaml
    overrides: {steps: 30, max_target_length: 2048, per_device_batch_size: 3, remat_policy: minimal_flash, quantization: fp8}
"""
POSTTRAIN = """
modules:
  post_trainer:
    framework: megatron_bridge
    config: sft_trainer.yaml
    model: llama3.2_1B.yaml
    overrides: {train_iters: 9, finetune_lr: 1.0e-4, peft: lora, global_batch_size: 32, micro_batch_size: 1, seq_length: 1024}
"""


def write(folder: Path, text: str, name: str = "exp.yaml") -> Path:
    """Write an experiment file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def converted(path: Path, **environment: str) -> Conversion:
    """Convert a file."""
    return convert(read_experiment(path, environment))


def values(found: Conversion) -> dict[str, Any]:
    """Return the settings by dotted name."""
    return {item.setting: item.value for item in found.kept}


def test_a_megatron_experiment_is_translated(tmp_path: Path) -> None:
    """Defaults of variables, numbers that YAML reads as text, the shape of the model, and a ratio of two settings."""
    found = converted(write(tmp_path, MEGATRON), PRIMUS_TP="4")

    assert found.task == "train pretrain"
    assert found.settings() == {
        "checkpoint": {"at_end": False},
        "compute": {"recompute": "full"},
        "data": {"source": "synthetic"},
        "model": {
            "ffn_width": 14336,
            "heads": 32,
            "kv_heads": 8,
            "layers": 32,
            "rope_theta": 500000.0,
            "vocabulary": 128256,
            "width": 4096,
        },
        "optimizer": {"lr": 1e-5, "min_lr_ratio": 0.1},
        "parallel": {"strategy": "fsdp", "tensor": 4},
        "train": {"clip_norm": 0.5, "global_batch": 128, "micro_batch": 2, "sequence_length": 8192, "steps": 50},
    }


def test_what_has_no_counterpart_is_listed_with_the_reason(tmp_path: Path) -> None:
    """A value that the trainer has anyway and one that is not set are not: they change nothing."""
    found = converted(write(tmp_path, MEGATRON))

    assert {item.name: item.reason for item in found.dropped} == {
        "wandb_project": "the run writes steps.jsonl and metrics for Prometheus",
        "pipeline_model_parallel_size": "the trainer has no pipeline parallelism",
        "fp8": "the trainer has bf16 and fp32",
        "some_new_setting": "the trainers here have no such setting",
    }
    assert found.unchanged == ("lr_decay_iters", "lr_decay_style")
    assert "the presets llama3.1_8B.yaml, pre_trainer.yaml are not beside the file (it is in no checkout of AMD Primus)" in found.notes


def test_a_torchtitan_experiment_is_translated(tmp_path: Path) -> None:
    """Nested names; the batch of a GPU times eight; tensor parallelism needs fsdp here."""
    found = values(converted(write(tmp_path, TORCHTITAN)))

    assert found["train.global_batch"] == 32
    assert (found["parallel.tensor"], found["parallel.strategy"], found["compute.recompute"]) == (8, "fsdp", "selective")
    assert (found["model.layers"], found["data.source"], found["train.steps"]) == (80, "files", 20)


def test_a_maxtext_experiment_is_translated(tmp_path: Path) -> None:
    """With experts, and a note about the variables of the file."""
    found = converted(write(tmp_path, MAXTEXT))

    assert {name: values(found)[name] for name in ("model.experts", "model.experts_per_token", "train.global_batch")} == {
        "model.experts": 8,
        "model.experts_per_token": 2,
        "train.global_batch": 24,
    }
    assert [item.name for item in found.dropped] == ["quantization"]
    assert "pass the variables of env: with --env: XLA_FLAGS" in found.notes


def test_fsdp2_is_fsdp_although_the_distributed_optimizer_is_off(tmp_path: Path) -> None:
    """AMD Primus switches the distributed optimizer off with FSDP2; that is no ddp."""
    text = MEGATRON.replace("mock_data: true", "use_torch_fsdp2: true\n      use_distributed_optimizer: false")

    assert values(converted(write(tmp_path, text)))["parallel.strategy"] == "fsdp"


def test_post_training_is_translated(tmp_path: Path) -> None:
    """To train posttrain; LoRA has no counterpart."""
    found = converted(write(tmp_path, POSTTRAIN))

    assert (found.task, values(found)["optimizer.lr"], [item.name for item in found.dropped]) == ("train posttrain", 1e-4, ["peft"])


def test_presets_of_a_checkout_are_used(tmp_path: Path) -> None:
    """The overrides win over the module, which wins over the model; `extends` is followed. Presets add no long list of what is dropped."""
    configs = tmp_path / "primus/configs"
    write(configs, "extends: [base.yaml]\nnum_layers: 12\nseq_length: 1\nqk_layernorm: true\n", "models/megatron/own.yaml")
    write(configs, "hidden_size: 768\nnum_attention_heads: 12\nvocab_size: 1000\nunknown_to_us: 1\n", "models/megatron/base.yaml")
    write(configs, "seq_length: 2\nlr: 2.0e-5\ntrain_iters: 7\n", "modules/megatron/pre_trainer.yaml")
    text = "modules: {pre_trainer: {framework: megatron, config: pre_trainer.yaml, model: own.yaml, overrides: {train_iters: 9}}}\n"
    found = converted(write(tmp_path, text, "examples/megatron/x.yaml"))

    assert values(found) == {
        "model.layers": 12,
        "model.width": 768,
        "model.heads": 12,
        "model.kv_heads": 12,
        "model.vocabulary": 1000,
        "optimizer.lr": 2e-5,
        "parallel.strategy": "fsdp",
        "train.sequence_length": 2,
        "train.steps": 9,
    }
    assert [(item.name, item.reason) for item in found.dropped] == [("qk_layernorm", "queries and keys are not normalized")]


@pytest.mark.parametrize("text", [MEGATRON, TORCHTITAN, MAXTEXT, POSTTRAIN])
def test_the_trainers_accept_the_result(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and types; --output writes the file, and the report names the command that uses it."""
    path = tmp_path / "new.yaml"
    code = main(["config", "convert", "--to", "native", str(write(tmp_path, text)), "--output", str(path)])
    settings = load_settings([str(path)], [])
    task = "posttrain" if text is POSTTRAIN else "pretrain"

    assert (code, settings.about) == (0, "converted from exp.yaml, an experiment file of AMD Primus")
    assert f"next: primus-cli direct -- train {task} --config {path}\n" in capsys.readouterr().out


def test_every_rule_names_a_setting_of_the_trainers() -> None:
    """And every choice is one of its values."""
    known = {entry.key: entry for entry in known_settings()}
    frameworks = yaml.safe_load((DATA / "primus_settings.yml").read_text())
    named = [
        rule if isinstance(rule, str) else rule["to"]
        for part in frameworks.values()
        for rule in part["settings"].values()
        if "why" not in rule
    ]
    models = [f"model.{name}" for entry in yaml.safe_load((DATA / "primus_models.yml").read_text()) for name in entry["model"]]

    assert sorted({*named, *models} - set(known)) == []


def test_without_output_the_configuration_is_the_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report goes to stderr, so that the output can be piped."""
    assert main(["config", "convert", "--to", "native", str(write(tmp_path, POSTTRAIN))]) == 0
    printed = capsys.readouterr()

    assert yaml.safe_load(printed.out)["train"]["steps"] == 9
    assert 'no counterpart: 1 setting\n  peft: "lora"  (the trainer changes all weights; it has no LoRA)\n' in printed.err


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs: the settings, what is kept, and what is not."""
    assert main(["config", "convert", "--to", "native", "--json", str(write(tmp_path, POSTTRAIN))]) == 0
    data = json.loads(capsys.readouterr().out)

    assert data["no_counterpart"] == [{"name": "peft", "value": "lora", "reason": "the trainer changes all weights; it has no LoRA"}]
    assert data["settings"]["optimizer"] == {"lr": 1e-4}
    assert {"name": "train_iters", "setting": "train.steps", "value": 9, "origin": "overrides"} in data["kept"]


def test_secrets_of_the_environment_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may refer to ${HF_TOKEN}."""
    monkeypatch.setenv("HF_TOKEN", "plain-word-of-a-secret")
    text = MAXTEXT.replace("{steps: 30,", "{steps: 30, hf_access_token: '${HF_TOKEN}',")
    main(["config", "convert", str(write(tmp_path, text))])
    printed = capsys.readouterr()

    assert "hf_access_token" in printed.err
    assert "plain-word" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {steps: 3}\n", "not an experiment file of AMD Primus"),
        ("- 1\n", "not a mapping"),
        ("modules: {pre_trainer: {model: x}}\n", "modules.pre_trainer has no framework"),
        (
            "modules: {pre_trainer: {framework: megatron, model: x, overrides: {a: '${NO_SUCH}'}}}\n",
            "${NO_SUCH} is not set and has no default",
        ),
        ("extends: exp.yaml\nmodules: {}\n", "extends itself"),
        ("modules: {pre_trainer: [\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    """With the file, and what to give instead."""
    with pytest.raises(UsageError) as caught:
        converted(write(tmp_path, text))

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modules: {pre_trainer: {framework: diffusion, model: flux}}\n", "the framework diffusion has no counterpart"),
        ("modules: {pre_trainer: {framework: megatron, model: deepseek_v3.yaml}}\n", "the shape of the model deepseek_v3 is not known"),
    ],
)
def test_what_cannot_be_trained_here_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    """Exit code 3: the file is valid."""
    with pytest.raises(PlanError, match=message):
        converted(write(tmp_path, text))


def test_an_existing_output_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user may have edited it."""
    write(tmp_path, "mine\n", "new.yaml")
    code = main(["config", "convert", str(write(tmp_path, MEGATRON)), "--output", str(tmp_path / "new.yaml")])

    assert (code, (tmp_path / "new.yaml").read_text()) == (2, "mine\n")
    assert "new.yaml: the file exists\n  fix: give another name, or remove it: rm " in capsys.readouterr().err
