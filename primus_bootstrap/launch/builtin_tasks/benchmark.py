"""The task `benchmark`: run a benchmark of workloads/bench with one process per GPU."""

from __future__ import annotations

from primus_bootstrap.launch.programs import benchmarks
from primus_bootstrap.launch.tasks import Program, Request, Task, long_option


def program(request: Request) -> Program:
    """Return the benchmark in the first argument.

    Raises:
        UsageError: It does not exist, or an option is wrong.
    """
    name, *options = benchmarks.own_arguments(request.workloads(), request.arguments)
    return Program((str(request.workloads() / "bench" / f"{name}.py"),), tuple(options))


def check(request: Request) -> tuple[str, ...]:
    """Check the name and the options.

    Raises:
        UsageError: It does not exist, or an option is wrong.
    """
    benchmarks.own_arguments(request.workloads(), request.arguments)
    return ()


TASK = Task(
    name="benchmark",
    meaning="Run a benchmark and print its result, without a verdict.",
    usage="NAME [options of that benchmark]",
    program=program,
    check=check,
    help=lambda request: benchmarks.help_text(request.workloads(), request.arguments),
    added=long_option,
)
