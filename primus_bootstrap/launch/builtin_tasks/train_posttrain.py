"""The task `train posttrain`: supervised fine-tuning."""

from __future__ import annotations

from primus_bootstrap.launch.programs import training
from primus_bootstrap.launch.tasks import Program, Request, Task


def program(request: Request) -> Program:
    """Return the fine-tuning program with its arguments."""
    return Program((str(request.workloads() / "train" / "posttrain.py"),), request.arguments)


TASK = Task(
    name="train posttrain",
    meaning="Fine-tune a model on prompts and answers.",
    usage=training.USAGE,
    program=program,
    check=training.check,
    help=lambda request: training.help_text("train posttrain", request),
)
