"""The decorator with which a Python file of the user defines a task of primus-cli.

    from primus_bootstrap.launch.plugins import task

    @task("count lines", meaning="Count the lines of files.", usage="FILE...")
    def count(arguments):
        ...

The decorated function is called with the words after the task's name, in the Python of the run. It returns the exit code; None is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DECORATOR = "task"


def task(name: str, *, meaning: str, usage: str = "", launcher: str = "python") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function as a task. primus-cli reads the arguments of the decorator without importing the file, so all are literals.

    Args:
        name: One or two words.
        meaning: One sentence for the list of tasks.
        usage: The arguments, for the list of tasks.
        launcher: python starts one process per node, torchrun one per rank.
    """
    del name, meaning, usage, launcher
    return lambda function: function
