"""The task `train posttrain`: supervised fine-tuning."""

from __future__ import annotations

from primus_bootstrap.launch.tasks import Program, Request, Task
from primus_bootstrap.launch.tasks.train_pretrain import training_program


def program(request: Request) -> Program:
    """Return the fine-tuning program with its arguments."""
    return training_program(request, "posttrain.py")


TASK = Task(
    name="train posttrain",
    meaning="Fine-tune a model on prompts and answers.",
    usage="--config FILE|PRESET [key=value]...",
    program=program,
)
