"""The task `benchmark --list`: list the benchmarks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.programs.benchmarks import listing
from primus_bootstrap.launch.self_exec import workloads_folder
from primus_bootstrap.launch.tasks import HERE, Request, Task

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(_arguments: Sequence[str]) -> int:
    """Print each benchmark with the first line of its docstring; return the exit code."""
    sys.stdout.write(listing(workloads_folder("", os.environ)))
    return 0


def check(request: Request) -> tuple[str, ...]:
    """Check that there are no arguments.

    Raises:
        UsageError: There is one.
    """
    if request.arguments:
        fix = "remove it; `primus-cli direct -- benchmark NAME --help` prints the options of one benchmark"
        raise UsageError(f"benchmark --list: unexpected argument: {request.arguments[0]}", fix=fix)
    return ()


TASK = Task(
    name="benchmark --list",
    meaning="List the benchmarks.",
    usage="(no options)",
    launcher=HERE,
    run=run,
    check=check,
    help=lambda _: "usage: primus-cli direct -- benchmark --list\n\nPrint the name of each benchmark and what it measures.\n",
)
