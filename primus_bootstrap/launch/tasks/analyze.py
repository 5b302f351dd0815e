"""The task `analyze`: summarize runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.tasks import HERE, Task

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Print the analysis of a run folder; return the exit code."""
    from primus_bootstrap.launch.diagnose import analyze  # noqa: PLC0415 - the registry loads every task, and few runs need this one

    return analyze.main(arguments)


TASK = Task(
    name="analyze", meaning="Summarize a run: command, speed, and the cause of a failure.", usage="RUN_FOLDER...", launcher=HERE, run=run
)
