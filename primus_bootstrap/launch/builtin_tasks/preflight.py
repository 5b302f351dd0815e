"""The task `preflight`: check every node, with one process per node."""

from __future__ import annotations

from primus_bootstrap.launch.checks import preflight_program
from primus_bootstrap.launch.self_exec import own_command
from primus_bootstrap.launch.tasks import PYTHON, Program, Request, Task, long_option


def program(request: Request) -> Program:
    """Return the program that checks this node."""
    return Program((*own_command(request.python), "preflight"), request.arguments)


def check(request: Request) -> tuple[str, ...]:
    """Check the arguments.

    Raises:
        UsageError: An argument is wrong.
    """
    preflight_program.check_arguments(request.arguments)
    return ()


TASK = Task(
    name="preflight",
    meaning="Check every node: GPUs, links, RDMA ports, memory, disks, kernel, limits, torch, and the name of node 0.",
    usage="[--gpu] [--network] [--host] [--job] [--checks GLOB,!GLOB] [--list] [--json] [--expect-json FILE] [--expect-source TEXT] "
    "[--expect-gpus N] [--min-free-gib N]",
    launcher=PYTHON,
    program=program,
    check=check,
    help=lambda _: preflight_program.help_text(),
    added=long_option,
)
