"""The task `analyze`, which summarizes runs, and the verb `analyze`, which runs this task or `analyze topology` without a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.tasks import HERE, Request, Task, find_task

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Print the analysis of a run folder; return the exit code."""
    from primus_bootstrap.launch.diagnose import analyze  # noqa: PLC0415 - the registry loads every task, and few runs need this one

    return analyze.main(arguments)


def check(request: Request) -> tuple[str, ...]:
    """Check the arguments.

    Raises:
        UsageError: An option is unknown, or no run folder is given.
    """
    from primus_bootstrap.launch.diagnose import analyze  # noqa: PLC0415 - as above

    analyze.check_arguments(request.arguments)
    return ()


def help_text(_request: Request) -> str:
    """Return the text of --help."""
    from primus_bootstrap.launch.diagnose import analyze  # noqa: PLC0415 - as above

    return analyze.help_text()


def main(words: Sequence[str]) -> int:
    """Run `primus-cli analyze …`; return the exit code."""
    task, arguments = find_task(("analyze", *words))
    return task.run(arguments) if task.run else 0


TASK = Task(
    name="analyze",
    meaning="Summarize a run: command, speed, and the cause of a failure.",
    usage="RUN_FOLDER... [--json]",
    launcher=HERE,
    run=run,
    check=check,
    help=help_text,
)
