"""The task `benchmark`: run a benchmark of workloads/bench with one process per GPU."""

from __future__ import annotations

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.runtimes.self_exec import programs_in
from primus_bootstrap.launch.tasks import Program, Request, Task, long_option


def program(request: Request) -> Program:
    """Return the benchmark in the first argument.

    Raises:
        UsageError: It does not exist.
    """
    folder = request.workloads() / "bench"
    known = programs_in(request.workloads(), "bench")
    name = request.arguments[0] if request.arguments else ""
    if name not in known:
        raise UsageError(f"no such benchmark: {name or '(none given)'}", fix=did_you_mean(name, known))
    return Program((str(folder / f"{name}.py"),), request.arguments[1:])


TASK = Task(
    name="benchmark",
    meaning="Run a benchmark and print its result, without a verdict.",
    usage="NAME [options of that benchmark]",
    program=program,
    added=long_option,
)
