"""The task `train pretrain`: pre-training of a language model."""

from __future__ import annotations

from primus_bootstrap.launch.training.training_task import training_task

TASK = training_task("train pretrain", "Train a language model from scratch.", "pretrain.py")
