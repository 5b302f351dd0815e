"""The task `train pretrain`: pre-training of a language model."""

from __future__ import annotations

from primus_bootstrap.launch.programs import training
from primus_bootstrap.launch.tasks import Program, Request, Task


def program(request: Request) -> Program:
    """Return the training program with its arguments."""
    return Program((str(request.workloads() / "train" / "pretrain.py"),), request.arguments)


TASK = Task(
    name="train pretrain",
    meaning="Train a language model from scratch.",
    usage=training.USAGE,
    program=program,
    check=training.check,
    help=lambda request: training.help_text("train pretrain", request),
)
