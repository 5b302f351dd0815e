"""The task `benchmark --list`: list the benchmarks."""

from __future__ import annotations

import ast
import os
import sys
from typing import TYPE_CHECKING

from primus_bootstrap.launch.runtimes.self_exec import programs_in, unpack_workloads, workloads_folder
from primus_bootstrap.launch.tasks import HERE, Task

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(_arguments: Sequence[str]) -> int:
    """Print each benchmark with the first line of its docstring; return the exit code."""
    unpack_workloads(os.environ)
    workloads = workloads_folder("", os.environ)
    for name in programs_in(workloads, "bench"):
        text = ast.get_docstring(ast.parse((workloads / "bench" / f"{name}.py").read_text("utf-8"))) or ""
        sys.stdout.write(f"{name:18} {text.splitlines()[0] if text else ''}\n")
    return 0


TASK = Task(name="benchmark --list", meaning="List the benchmarks.", usage="(no options)", launcher=HERE, run=run)
