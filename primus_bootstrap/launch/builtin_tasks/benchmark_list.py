"""The task `benchmark --list`: list the benchmarks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from primus_bootstrap.launch.programs.benchmarks import listing
from primus_bootstrap.launch.self_exec import workloads_folder
from primus_bootstrap.launch.tasks import HERE, Task

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(_arguments: Sequence[str]) -> int:
    """Print each benchmark with the first line of its docstring; return the exit code."""
    sys.stdout.write(listing(workloads_folder("", os.environ)))
    return 0


TASK = Task(
    name="benchmark --list",
    meaning="List the benchmarks.",
    usage="(no options)",
    launcher=HERE,
    run=run,
    help=lambda _: "usage: primus-cli direct -- benchmark --list\n\nPrint the name of each benchmark and what it measures.\n",
)
