"""workloads.train.checkpoint: the restored state, and the options from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from workloads.common.process_group import Group, process_group
from workloads.train.checkpoint import Checkpoints
from workloads.train.load_settings import load_settings
from workloads.train.losses import whole
from workloads.train.parallel import build_model
from workloads.train.step import make_optimizer

if TYPE_CHECKING:
    from pathlib import Path

    from torch.optim import Optimizer


def optimizer_after(folder: Path, group: Group, *arguments: str, save: bool) -> tuple[Optimizer, dict[str, Any]]:
    """Run one step and save it, or load the checkpoint; return the optimizer and the state of its first parameter."""
    settings = load_settings(["debug-dense"], list(arguments))
    model = build_model(settings, group)
    optimizer = make_optimizer(model, settings, group.device)
    checkpoints = Checkpoints(folder, settings.checkpoint, group)
    if save:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        checkpoints.save(1, model, optimizer, {})
        checkpoints.wait()
    else:
        path = checkpoints.newest_good()
        assert path
        checkpoints.load(path, model, optimizer)
    checkpoints.close()
    return optimizer, optimizer.state[optimizer.param_groups[0]["params"][0]]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_moments_come_from_the_checkpoint_and_options_from_the_settings(tmp_path: Path, strategy: str) -> None:
    """A changed weight decay, beta or epsilon applies after a resume."""
    new = ("optimizer.weight_decay=0.01", "optimizer.beta2=0.99", "optimizer.eps=1e-6")
    with process_group(device="cpu", timeout_s=60) as group:
        _, before = optimizer_after(tmp_path, group, f"parallel.strategy={strategy}", save=True)
        optimizer, after = optimizer_after(tmp_path, group, f"parallel.strategy={strategy}", *new, save=False)
        same = [torch.equal(whole(before[name]), whole(after[name])) for name in ("exp_avg", "exp_avg_sq", "step")]

    assert same == [True, True, True]
    assert [(part["weight_decay"], part["betas"], part["eps"]) for part in optimizer.param_groups] == [
        (0.01, (0.9, 0.99), 1e-6),
        (0.0, (0.9, 0.99), 1e-6),
    ]
