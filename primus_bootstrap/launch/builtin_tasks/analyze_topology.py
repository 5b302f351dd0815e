"""The task `analyze topology`: show GPUs, NICs, NUMA nodes, PCIe switches, links and the fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.tasks import HERE, Request, Task

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Print the topology; return the exit code."""
    from primus_bootstrap.launch.topology import topology_program  # noqa: PLC0415 - the registry loads every task; few runs need this

    return topology_program.main(arguments)


def check(request: Request) -> tuple[str, ...]:
    """Check the arguments.

    Raises:
        UsageError: An option is unknown, or the picture has an unknown format.
    """
    from primus_bootstrap.launch.topology import topology_program  # noqa: PLC0415 - as above

    topology_program.check_arguments(request.arguments)
    return ()


def help_text(_request: Request) -> str:
    """Return the text of --help."""
    from primus_bootstrap.launch.topology import topology_program  # noqa: PLC0415 - as above

    return topology_program.help_text()


TASK = Task(
    name="analyze topology",
    meaning="Show GPUs, NICs, NUMA nodes, PCIe switches, GPU links, and racks and switches, as a tree and as a picture.",
    usage="[--visualize [FILE.svg|FILE.html]] [--fabric FILE] [--recorded FILE] [--json]",
    launcher=HERE,
    run=run,
    check=check,
    help=help_text,
)
