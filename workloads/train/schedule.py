"""The learning rate of a step: linear warm-up, then a cosine (SGDR, arXiv:1608.03983, equation 5, without restarts)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.train.settings import OptimizerSettings


def learning_rate(optimizer: OptimizerSettings, step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 1, of a run of `steps`."""
    if step <= optimizer.warmup_steps:
        return optimizer.lr * step / optimizer.warmup_steps
    end = optimizer.decay_steps or steps
    lowest = optimizer.lr * optimizer.min_lr_ratio
    if step >= end:
        return lowest
    progress = (step - optimizer.warmup_steps) / (end - optimizer.warmup_steps)
    return lowest + (optimizer.lr - lowest) * 0.5 * (1 + math.cos(math.pi * progress))
