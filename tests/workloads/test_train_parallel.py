"""workloads.train.parallel: mixed precision."""

from __future__ import annotations

import torch

from workloads.common.process_group import process_group
from workloads.train.load_settings import load_settings
from workloads.train.parallel import arithmetic, build_model

LENGTH = 2048


def logits(*arguments: str) -> torch.Tensor:
    """Return the logits of a long sequence from a model with scaled weights, whose attention depends strongly on positions."""
    settings = load_settings(["debug-dense"], [f"train.sequence_length={LENGTH}", *arguments])
    tokens_BL = torch.randint(512, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    with process_group(device="cpu", timeout_s=60) as group:
        model = build_model(settings, group)
        with torch.no_grad(), arithmetic(settings, group, model):
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(5)
            return torch.Tensor(model(tokens_BL)[0].float())


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the mean relative error of the logits in the second half of the sequence."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1))[0, LENGTH // 2 :].mean())


def test_rotary_angles_are_fp32_under_mixed_precision() -> None:
    """The logits at late positions equal those of fp32, except for bf16 rounding."""
    exact = logits("compute.precision=fp32")

    assert error(logits("compute.precision=bf16", "parallel.strategy=fsdp"), exact) < 0.02
    assert error(logits("compute.precision=bf16"), exact) < 0.02
