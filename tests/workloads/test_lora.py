"""Low-rank adaptation: only the additions are trained, and exported weights contain them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors import safe_open

from tests.workloads.ranks import Ranks, train
from workloads.common.errors import SettingsError
from workloads.train.check_settings import check_settings
from workloads.train.lora import add_lora, is_added, merged
from workloads.train.losses import sum_of_losses
from workloads.train.model import Transformer, materialise
from workloads.train.settings import ComputeSettings, LoraSettings, ModelSettings, ParallelSettings, Settings

if TYPE_CHECKING:
    from pathlib import Path

_MODEL = ModelSettings(vocabulary=64, layers=2, width=32, heads=4, kv_heads=2, ffn_width=48)
_LORA = LoraSettings(rank=4, targets=("attention.query", "ffn.down"))
_BASE = ("--config", "debug-dense", "checkpoint.every_steps=0")
_TRAINED = ("lora.rank=4", "train.steps=4", "optimizer.lr=1e-2")


def _model(lora: LoraSettings | None) -> Transformer:
    with torch.device("meta"):
        model = Transformer(_MODEL, ComputeSettings(precision="fp32"))
    if lora:
        add_lora(model, lora)
    for name, part in model.named_children():
        materialise(part, torch.device("cpu"), seed=3, name=name, layers=_MODEL.layers)
    return model


def test_only_the_additions_are_trained_and_change_nothing_at_first() -> None:
    """Two matrices beside each target of each block."""
    tokens = torch.arange(16).reshape(1, 16)
    plain, adapted = _model(None), _model(_LORA)
    assert torch.equal(plain(tokens)[0], adapted(tokens)[0])
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2 * 2
    assert all(map(is_added, trained))


def test_the_additions_learn() -> None:
    """The loss of one batch falls by a tenth, and the frozen weights stay as they are."""
    model, tokens = _model(LoraSettings(rank=8, alpha=32)), torch.arange(48).reshape(2, 24) % 11
    before = {name: value.clone() for name, value in model.state_dict().items() if not is_added(name)}
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=2e-2)
    losses = []
    for _ in range(40):
        loss = sum_of_losses(model(tokens)[0][:, :-1], tokens[:, 1:])
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_merged_weights_give_the_same_result() -> None:
    """W + scale B A is the matrix that the sum of both products stands for."""
    adapted = _model(_LORA)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    state = dict(adapted.state_dict())
    plain = _model(None)
    plain.load_state_dict({name: merged(name, state, _LORA.alpha / _LORA.rank) for name in state if not is_added(name)})
    tokens = torch.arange(16).reshape(1, 16)
    assert torch.allclose(plain(tokens)[0], adapted(tokens)[0], atol=1e-4)
    assert not torch.allclose(_model(None)(tokens)[0], adapted(tokens)[0], atol=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(lora=LoraSettings(rank=2, targets=("attention.querry",))), "attention.querry"),
        (Settings(lora=LoraSettings(rank=2, targets=())), "empty"),
        (Settings(model=ModelSettings(experts=4), lora=LoraSettings(rank=2, targets=("ffn.gate",))), "ffn.gate"),
        (Settings(lora=LoraSettings(rank=2), parallel=ParallelSettings(strategy="fsdp", tensor=2)), "parallel.tensor=2 and lora.rank=2"),
    ],
)
def test_impossible_settings_are_refused(settings: Settings, message: str) -> None:
    """Before anything is started."""
    with pytest.raises(SettingsError) as raised:
        check_settings(settings, 2)
    assert message in raised.value.what


@pytest.mark.long("workloads")
def test_fine_tuning_continues_a_checkpoint_and_exports_the_sum(tmp_path: Path) -> None:
    """The weights of the base stay; FSDP has the losses of DDP; a run from the exported weights starts where this one ended."""
    base = train(tmp_path / "base", 1, *_BASE, "train.steps=4", f"checkpoint.export={tmp_path / 'base-weights'}")
    start = f"checkpoint.start_from={tmp_path / 'base' / 'checkpoints' / 'step-00000004'}"
    tuned = train(tmp_path / "tuned", 1, *_BASE, *_TRAINED, start, f"checkpoint.export={tmp_path / 'tuned-weights'}")
    sharded = train(tmp_path / "sharded", 2, *_BASE, *_TRAINED, start, "parallel.strategy=fsdp")
    assert (base.codes, tuned.codes, sharded.codes) == ([0], [0], [0, 0])
    assert tuned.losses() == pytest.approx(sharded.losses(), rel=1e-5)
    with (
        safe_open(tmp_path / "base-weights" / "model-00001-of-00001.safetensors", framework="pt") as before,
        safe_open(tmp_path / "tuned-weights" / "model-00001-of-00001.safetensors", framework="pt") as after,
    ):
        changed = {name for name in before.keys() if not torch.equal(before.get_tensor(name), after.get_tensor(name))}  # noqa: SIM118
    assert changed
    assert all("self_attn" in name for name in changed)


@pytest.mark.long("workloads")
def test_a_run_with_additions_resumes_from_its_own_checkpoint_only(tmp_path: Path) -> None:
    """Bit-identical, and another rank of the additions is refused."""
    whole = train(tmp_path / "whole", 1, *_BASE, *_TRAINED)
    train(tmp_path / "parts", 1, *_BASE, *_TRAINED, "train.steps=2", "optimizer.decay_steps=4")
    again = train(tmp_path / "parts", 1, *_BASE, *_TRAINED)
    refused = Ranks(tmp_path / "parts", 1, *_BASE, *_TRAINED, "lora.rank=8", "train.steps=6").wait()
    assert again.losses() == whole.losses()
    assert refused.codes == [2]
    assert "lora.rank 4 -> 8" in refused.outputs[0]
