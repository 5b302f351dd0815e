"""`benchmark`: one of the measuring programs of workloads/bench, one process a GPU."""

from __future__ import annotations

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.runtimes.self_exec import programs_in
from primus_bootstrap.launch.tasks import Program, Request, Task, long_option


def program(request: Request) -> Program:
    """Return the measuring program that the first argument names.

    Raises:
        UsageError: There is no such program.
    """
    folder = request.workloads() / "bench"
    known = programs_in(request.workloads(), "bench")
    name = request.arguments[0] if request.arguments else ""
    if name not in known:
        raise UsageError(f"no such benchmark: {name or '(none given)'}", fix=did_you_mean(name, known))
    return Program((str(folder / f"{name}.py"),), request.arguments[1:])


TASK = Task(
    name="benchmark",
    meaning="Measure a machine: a number with its unit, and no verdict.",
    usage="NAME [options of that program]",
    program=program,
    added=long_option,
)
