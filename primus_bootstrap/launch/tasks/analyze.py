"""`analyze`: what a run folder says of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.tasks import HERE, Task

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Print the analysis of a run folder; return the exit code."""
    from primus_bootstrap.launch.diagnose import analyze  # noqa: PLC0415 - the registry loads every task, and few runs need this one

    return analyze.main(arguments)


TASK = Task(name="analyze", meaning="Say what a run did, how fast, and why it ended.", usage="RUN_FOLDER...", launcher=HERE, run=run)
