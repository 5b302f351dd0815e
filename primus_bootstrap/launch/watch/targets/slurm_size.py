"""Choose the processors and memory of a Slurm job, if its user sets neither. Pure functions.

Without such options Slurm gives the launcher one processor per node and that processor's share of the memory, however many GPUs it has:
https://slurm.schedmd.com/sbatch.html#OPT_cpus-per-task
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from primus_bootstrap.launch.watch.job_spec import Job

# Format of sinfo for `read_sizes`.
FORMAT = "%N|%P|%c|%G"
_COLUMNS = 4
# Options that set the number of processors; with one of these, nothing is added.
_PROCESSORS = frozenset(
    {"--exclusive", "--oversubscribe", "--share", "--overcommit", "--cpus-per-task", "--cpus-per-gpu", "--mincpus", "--cores-per-socket",
     "--sockets-per-node", "--threads-per-core", "--extra-node-info", "-c", "-s", "-B", "-O"}
)  # fmt: skip
_MEMORY = frozenset({"--mem", "--mem-per-cpu", "--mem-per-gpu"})
# `gpu:8`, `gpu:mi300x:8(S:0-1)`, several with commas between: https://slurm.schedmd.com/sinfo.html (%G)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True)
class NodeSize:
    """The size of a node in a partition; a star after `partition` marks the default one."""

    partition: str
    cpus: int
    gpus: int


def read_sizes(text: str) -> tuple[NodeSize, ...]:
    """Read the output of sinfo in FORMAT."""
    rows = [line.strip().split("|") for line in text.splitlines()]
    known = [row for row in rows if len(row) == _COLUMNS and row[2].isdecimal()]
    return tuple(NodeSize(partition, int(cpus), sum(map(int, _GPUS.findall(gpus)))) for _, partition, cpus, gpus in known)


def needs_size(job: Job) -> bool:
    """Return whether options must be added: the user sets no processors, and one is too few."""
    return not _options(job) & _PROCESSORS and (job.gpus_per_node > 0 or job.processes > 1)


def size_options(job: Job, nodes: Iterable[NodeSize]) -> tuple[str, ...]:
    """Return the options for a job that needs them; `nodes` are those of its partition.

    A job with all GPUs of its nodes gets whole nodes. Fewer GPUs get their share by slurm.conf (DefCpuPerGPU, which the role slurm
    writes). Without GPUs each process gets a processor, up to the number that every node has.
    """
    known: Sequence[NodeSize] = tuple(nodes)
    if job.gpus_per_node:
        most = max((node.gpus for node in known), default=0)
        memory = () if _options(job) & _MEMORY else ("--mem=0",)
        return ("--exclusive", *memory) if 0 < most <= job.gpus_per_node else ()
    count = min(job.processes, *(node.cpus for node in known)) if known else 1
    return (f"--cpus-per-task={count}",) if count > 1 else ()


def _options(job: Job) -> frozenset[str]:
    """Return the names of the user's options, `-c16` as -c."""
    names = (word.partition("=")[0] for word in job.slurm.options)
    return frozenset(name if name.startswith("--") else name[:2] for name in names)
