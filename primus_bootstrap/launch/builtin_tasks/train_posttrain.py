"""The task `train posttrain`: supervised fine-tuning."""

from __future__ import annotations

from primus_bootstrap.launch.training.training_task import training_task

TASK = training_task("train posttrain", "Fine-tune a model on prompts and answers.", "posttrain.py")
