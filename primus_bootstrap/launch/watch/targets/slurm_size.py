"""How much of a node a job of Slurm asks for beside GPUs: processors and memory, where its user states neither. Pure.

Slurm itself gives one launcher a node one processor and that processor's memory, however many GPUs it has:
https://slurm.schedmd.com/sbatch.html#OPT_cpus-per-task
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from primus_bootstrap.launch.watch.job_spec import Job

# What sinfo prints of nodes, for `read_sizes`.
FORMAT = "%N|%P|%c|%G"
_COLUMNS = 4
# Options by which a user says how many processors there are to be; nothing is added to these.
_PROCESSORS = frozenset(
    {"--exclusive", "--oversubscribe", "--share", "--overcommit", "--cpus-per-task", "--cpus-per-gpu", "--mincpus", "--cores-per-socket",
     "--sockets-per-node", "--threads-per-core", "--extra-node-info", "-c", "-s", "-B", "-O"}
)  # fmt: skip
_MEMORY = frozenset({"--mem", "--mem-per-cpu", "--mem-per-gpu"})
# `gpu:8`, `gpu:mi300x:8(S:0-1)`, several with commas between: https://slurm.schedmd.com/sinfo.html (%G)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True)
class NodeSize:
    """What Slurm says that a node of a partition has; `partition` bears a star where it is the default one."""

    partition: str
    cpus: int
    gpus: int


def read_sizes(text: str) -> tuple[NodeSize, ...]:
    """Read what sinfo printed in FORMAT."""
    rows = [line.strip().split("|") for line in text.splitlines()]
    known = [row for row in rows if len(row) == _COLUMNS and row[2].isdecimal()]
    return tuple(NodeSize(partition, int(cpus), sum(map(int, _GPUS.findall(gpus)))) for _, partition, cpus, gpus in known)


def is_open(job: Job) -> bool:
    """Say whether there is something to add: the user states no processors, and one is too few."""
    return not _options(job) & _PROCESSORS and (job.gpus_per_node > 0 or job.processes > 1)


def size_words(job: Job, nodes: Iterable[NodeSize]) -> tuple[str, ...]:
    """Return the options for a job of which `is_open` is true; `nodes` are those of its partition.

    A job that has all GPUs of its nodes leaves nobody anything to share, and takes them whole. Fewer GPUs have the share that slurm.conf
    gives them (DefCpuPerGPU, which the role slurm writes). Without GPUs each process has a processor, as far as every node has as many.
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
