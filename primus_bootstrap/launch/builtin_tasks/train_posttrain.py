"""The task `train posttrain`: supervised fine-tuning with the native trainer, and also LoRA and GRPO with the backend trl."""

from __future__ import annotations

from primus_bootstrap.launch.training.posttraining import with_backends
from primus_bootstrap.launch.training.training_task import training_task

TASK = with_backends(training_task("train posttrain", "Fine-tune a model on prompts and answers, or with rewards.", "posttrain.py"))
