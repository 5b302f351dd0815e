"""Weights in the format of Hugging Face: names, shapes, sharded reading, and errors.

tests/backends compares the logits with those of the transformers package.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.workloads.ranks import train
from workloads.common.errors import SettingsError, StorageError
from workloads.train import hugging_face
from workloads.train.model import Transformer, rotary_angles
from workloads.train.settings import ComputeSettings, ModelSettings, Settings

if TYPE_CHECKING:
    from pathlib import Path

_DENSE = ModelSettings(vocabulary=96, layers=2, width=32, heads=4, kv_heads=2, ffn_width=48)
_EXPERTS = replace(_DENSE, experts=4, experts_per_token=2)
_TOKENS = torch.arange(24).reshape(2, 12) * 7 % 96


def _model(settings: ModelSettings) -> Transformer:
    torch.manual_seed(5)
    model = Transformer(settings, ComputeSettings(precision="fp32"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter).mul(0.1).to(torch.bfloat16))  # bf16 keeps these values
    return model


def _saved(folder: Path, settings: ModelSettings) -> Transformer:
    model = _model(settings)
    hugging_face.save_weights(folder, model, Settings(model=settings), is_first=True)
    return model


@pytest.mark.parametrize("settings", [_DENSE, _EXPERTS], ids=["dense", "experts"])
def test_saved_weights_give_the_same_logits(tmp_path: Path, settings: ModelSettings) -> None:
    """Writing and reading are each other's inverse, for every tensor."""
    written = _saved(tmp_path / "weights", settings)
    read = Transformer(settings, ComputeSettings(precision="fp32"))
    hugging_face.load_weights(tmp_path / "weights", read, settings)
    assert torch.equal(read(_TOKENS)[0], written(_TOKENS)[0])
    assert hugging_face.is_hugging_face(tmp_path / "weights")
    assert not hugging_face.is_hugging_face(tmp_path)


def test_experts_are_transposed_and_named_as_in_mixtral(tmp_path: Path) -> None:
    """w1 is the gate, w3 the other half, w2 the output; matrices are (out, in)."""
    model = _saved(tmp_path / "weights", _EXPERTS)
    with safe_open(tmp_path / "weights" / "model-00001-of-00001.safetensors", framework="pt") as file:
        gate = file.get_tensor("model.layers.1.block_sparse_moe.experts.3.w1.weight")
    assert torch.equal(gate.float(), model.state_dict()["blocks.1.ffn.gate_EDF"][3].T)


def test_large_weights_are_split_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has the file of every tensor and their size together."""
    monkeypatch.setattr(hugging_face, "_SHARD_BYTES", 6000)
    model = _saved(tmp_path / "weights", _DENSE)
    index = json.loads((tmp_path / "weights" / "model.safetensors.index.json").read_text("utf-8"))
    files = set(index["weight_map"].values())
    assert len(files) > 2
    assert {path.name for path in (tmp_path / "weights").glob("*.safetensors")} == files
    assert index["metadata"]["total_size"] == 2 * sum(parameter.numel() for parameter in model.parameters())
    read = Transformer(_DENSE, ComputeSettings(precision="fp32"))
    hugging_face.load_weights(tmp_path / "weights", read, _DENSE)
    assert torch.equal(read(_TOKENS)[0], model(_TOKENS)[0])


def test_an_output_tied_to_the_embedding_is_read_from_it(tmp_path: Path) -> None:
    """Small models have no tensor of their own for the output."""
    _saved(tmp_path, _DENSE)
    folder = tmp_path / "tied"
    folder.mkdir()
    with safe_open(next(tmp_path.glob("*.safetensors")), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if name != "lm_head.weight"}  # noqa: SIM118 - no mapping
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((tmp_path / "config.json").read_text("utf-8"), "utf-8")
    model = Transformer(_DENSE, ComputeSettings(precision="fp32"))
    hugging_face.load_weights(folder, model, _DENSE)
    assert torch.equal(model.get_parameter("output.weight"), model.get_parameter("embedding.weight"))


def test_settings_and_config_are_each_others_inverse() -> None:
    """Also with Llama 3's scaling of rotary frequencies, in the old and in the new form."""
    scaled = replace(_DENSE, rope_factor=8.0, rope_trained_length=64)
    for settings in (_DENSE, _EXPERTS, scaled):
        found = hugging_face.settings_of(hugging_face.config_of(settings))
        assert found == {name: asdict(settings)[name] for name in found}
    config = hugging_face.config_of(scaled)
    config["rope_parameters"] = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    assert hugging_face.settings_of(config)["rope_factor"] == 8.0
    assert hugging_face.settings_of(config)["rope_theta"] == _DENSE.rope_theta


def test_low_frequencies_are_divided_by_the_factor() -> None:
    """The highest frequency stays, the lowest is divided by 8, and those between are between."""
    plain = rotary_angles(_DENSE, 2, torch.device("cpu"))[1]
    scaled = rotary_angles(replace(_DENSE, rope_factor=8.0, rope_trained_length=64), 2, torch.device("cpu"))[1]
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(float(plain[-1]) / 8)
    assert torch.all(scaled <= plain)


@pytest.mark.parametrize(
    ("change", "message", "fix"),
    [
        ({"hidden_size": 64}, "another model", "model.width=64"),
        ({"model_type": "qwen2"}, "type qwen2", "llama"),
        ({"attention_bias": True}, "attention_bias", "without biases"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn", "llama3"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, change: dict[str, Any], message: str, fix: str) -> None:
    """The fix has the settings to pass."""
    _saved(tmp_path / "weights", _DENSE)
    file = tmp_path / "weights" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(SettingsError, match=message) as raised:
        hugging_face.load_weights(tmp_path / "weights", _model(_DENSE), _DENSE)
    assert fix in raised.value.fix


def test_damaged_files_are_named(tmp_path: Path) -> None:
    """A truncated file and an index without its file."""
    _saved(tmp_path / "weights", _DENSE)
    file = tmp_path / "weights" / "model-00001-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StorageError, match="model-00001-of-00001"):
        hugging_face.load_weights(tmp_path / "weights", _model(_DENSE), _DENSE)
    file.unlink()
    with pytest.raises(StorageError, match="model-00001-of-00001"):
        hugging_face.load_weights(tmp_path / "weights", _model(_DENSE), _DENSE)


def test_an_export_replaces_nothing_but_an_earlier_export(tmp_path: Path) -> None:
    """A folder of the user, and weights from elsewhere, stay as they are."""
    weights, other = tmp_path / "weights", tmp_path / "other"
    hugging_face.require_replaceable(weights)
    _saved(weights, _DENSE)
    hugging_face.require_replaceable(weights)
    _saved(weights, _DENSE)
    index = weights / "model.safetensors.index.json"
    index.write_text(index.read_text("utf-8").replace("primus trainer", "another program"), "utf-8")
    other.mkdir()
    (other / "thesis.tex").touch()
    for folder in (weights, other, index):
        with pytest.raises(SettingsError, match="did not write it"):
            hugging_face.require_replaceable(folder)


def test_an_export_that_cannot_be_written_is_an_error_of_the_storage(tmp_path: Path) -> None:
    """It names the folder."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        _saved(tmp_path / "file" / "weights", _DENSE)


@pytest.mark.long("workloads")
def test_a_run_starts_from_exported_weights_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Every rank of FSDP with tensor parallelism reads its part; the first loss is the same as on one rank."""
    common = ("--config", "debug-dense", "train.steps=2", "optimizer.lr=0")
    export = tmp_path / "weights"
    train(tmp_path / "first", 1, *common, f"checkpoint.export={export}")
    started = f"checkpoint.start_from={export}"
    one = train(tmp_path / "one", 1, *common, started)
    two = train(
        tmp_path / "two", 2, *common, started, "parallel.strategy=fsdp", "parallel.tensor=2", f"checkpoint.export={tmp_path / 'again'}"
    )
    assert one.codes == [0]
    assert two.codes == [0, 0]
    assert two.losses() == pytest.approx(one.losses(), rel=2e-6)
    with safe_open(tmp_path / "again" / "model-00001-of-00001.safetensors", framework="pt") as file:
        assert file.get_tensor("lm_head.weight").shape == file.get_tensor("model.embed_tokens.weight").shape
