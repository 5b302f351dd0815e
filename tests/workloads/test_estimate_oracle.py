"""The closed form of the memory estimate against torch's MemTracker, which counts every tensor of a forward and backward pass.

The native trainer's own layers run on fake tensors: nothing is computed, so large shapes take seconds. FSDP computes with bf16 weights, so
the oracle has a bf16 model; its weights, gradients and moments are bf16 as well, and the estimate is asked for the same sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from primus_bootstrap.launch.estimate import memory as estimate
from primus_bootstrap.launch.estimate.accounting import accounting
from primus_bootstrap.launch.recipes.model_shape import Experts, ModelShape
from primus_bootstrap.launch.recipes.recipe import FSDP, Batch, Layout, Recipe, Recompute
from workloads.train.losses import sum_of_losses
from workloads.train.model import Transformer
from workloads.train.settings import ComputeSettings, ModelSettings

_LENGTH, _BOUND = 2048, 0.05
_DENSE = ModelSettings(vocabulary=32000, layers=4, width=2048, heads=16, kv_heads=16, ffn_width=5632)
_EXPERTS = ModelSettings(vocabulary=32000, layers=3, width=1024, heads=8, kv_heads=8, ffn_width=1408, experts=8, experts_per_token=2)
_SHAPES = {
    "dense": (_DENSE, "none", 2),
    "dense, selective": (_DENSE, "selective", 2),
    "dense, full": (_DENSE, "full", 2),
    "large vocabulary": (replace(_DENSE, vocabulary=128256, layers=2), "none", 1),
    "narrow and deep": (replace(_DENSE, width=1024, heads=8, kv_heads=8, ffn_width=2816, layers=10), "none", 2),
    "wide": (replace(_DENSE, width=4096, heads=32, kv_heads=32, ffn_width=14336, layers=2), "none", 1),
    "8 experts, 2 per token": (_EXPERTS, "none", 2),
    "8 experts, selective": (_EXPERTS, "selective", 2),
    "8 experts, full": (_EXPERTS, "full", 2),
    "16 experts, 4 per token": (replace(_EXPERTS, experts=16, experts_per_token=4, ffn_width=704), "none", 2),
}


@pytest.mark.parametrize("name", _SHAPES)
def test_the_closed_form_agrees_with_the_tracker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 5 % of the peak of the second step."""
    settings, recompute, micro = _SHAPES[name]
    assert _estimated(settings, recompute, micro, monkeypatch) == pytest.approx(_tracked(settings, recompute, micro), rel=_BOUND)


def _tracked(settings: ModelSettings, recompute: Any, micro: int) -> float:
    """Return the peak in GiB of a step, with gradients and moments of the step before."""
    with FakeTensorMode(), torch.device("cpu"):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Transformer(settings, ComputeSettings(recompute=recompute))
        finally:
            torch.set_default_dtype(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters())
        _step(model, micro)
        optimizer.step()
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None))
        with tracker:
            _step(model, micro)
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return float(snapshot["Total"]) / estimate.GIB


def _step(model: Transformer, micro: int) -> None:
    tokens = torch.zeros(micro, _LENGTH, dtype=torch.long)
    logits, balance = model(tokens)
    torch.autograd.backward(sum_of_losses(logits, tokens) + balance)


def _estimated(settings: ModelSettings, recompute: str, micro: int, monkeypatch: pytest.MonkeyPatch) -> float:
    experts = Experts(settings.experts, settings.experts_per_token, settings.ffn_width) if settings.experts else None
    head_size = settings.width // settings.heads
    shape = ModelShape(
        "test", settings.layers, settings.width, settings.heads, settings.kv_heads, head_size, settings.ffn_width, settings.vocabulary,
        experts=experts,
    )  # fmt: skip
    recipe = Recipe("test", "test", "native", "H200", "bf16", Layout(1, data=FSDP), Batch(_LENGTH, micro, micro), Recompute(recompute))
    in_bf16 = replace(accounting(recipe), weights=2, gradients=2, optimizer=4, fixed_gib=0)
    monkeypatch.setattr(estimate, "accounting", lambda _recipe: in_bf16)
    return estimate.memory(shape, recipe)[0].total
