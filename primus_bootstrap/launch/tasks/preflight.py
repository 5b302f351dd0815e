"""`preflight`: whether this node can take a run, looked at by one process a node."""

from __future__ import annotations

from primus_bootstrap.launch.runtimes.self_exec import own_command
from primus_bootstrap.launch.tasks import PYTHON, Program, Request, Task, long_option


def program(request: Request) -> Program:
    """Return the look at this node."""
    return Program((*own_command(request.python), "preflight"), request.arguments)


TASK = Task(
    name="preflight",
    meaning="Look at every node before a run: GPUs, links, RDMA ports, memory, disks, kernel, limits, torch, the way to node 0.",
    usage="[--list] [--json] [--checks GLOB,!GLOB] [--expect-json FILE] [--expect-gpus N] [--min-free-gib N]",
    launcher=PYTHON,
    program=program,
    added=long_option,
)
