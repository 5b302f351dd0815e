"""Start the ranks of a training program like torchrun, and collect output and exit code of each rank.

Ranks are forked from a server with torch already imported (multiprocessing's `forkserver`), which makes a run faster.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 100

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["workloads.train.program"])


@dataclass(frozen=True, slots=True)
class Run:
    """A completed run: exit code and output of each rank."""

    folder: Path
    codes: list[int | None]
    outputs: list[str]

    def steps(self) -> list[dict[str, Any]]:
        """Return steps.jsonl; of a repeated step, the last line."""
        lines = [json.loads(line) for line in (self.folder / "steps.jsonl").read_text("utf-8").splitlines()]
        return list({line["step"]: line for line in lines}.values())

    def losses(self) -> list[float]:
        """Return the loss of each step."""
        return [line["loss"] for line in self.steps()]

    def checkpoints(self) -> list[str]:
        """Return the names in the checkpoint folder."""
        return sorted(path.name for path in (self.folder / "checkpoints").iterdir())


class Ranks:
    """The processes of a run."""

    def __init__(self, folder: Path, count: int, *arguments: str, program: str = "pretrain", largest_file: int | None = None) -> None:
        """Start `count` ranks. A single rank has no torchrun variables.

        `program` is a trainer's name or `module:function`; `largest_file` is a file size limit in bytes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # for the server, which starts with the first run
        port = _free_port()
        self.processes = [
            _SERVER.Process(target=_run_rank, args=(folder, _torchrun_variables(rank, count, port), program, list(arguments), largest_file))
            for rank in range(count)
        ]
        for process in self.processes:
            process.start()

    def output(self, rank: int = 0) -> str:
        """Return what a rank has printed so far."""
        path = self.folder / f"rank-{rank}.out"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def wait_for(self, text: str, rank: int = 0) -> None:
        """Wait until a rank has printed a text."""
        end = time.monotonic() + LIMIT_S
        while text not in self.output(rank):
            assert time.monotonic() < end, f"rank {rank} never printed {text!r}:\n{self.output(rank)}"
            assert self.processes[rank].is_alive(), f"rank {rank} ended before it printed {text!r}:\n{self.output(rank)}"
            time.sleep(0.02)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wait(self) -> Run:
        """Wait until all ranks have ended. Kill the remaining ranks at the time limit."""
        end = time.monotonic() + LIMIT_S
        for process in self.processes:
            process.join(max(0.1, end - time.monotonic()))
        for process in self.processes:
            process.kill()
            process.join()
        return Run(
            self.folder, [process.exitcode for process in self.processes], [self.output(rank) for rank in range(len(self.processes))]
        )


def train(folder: Path, count: int, *arguments: str, program: str = "pretrain") -> Run:
    """Run, and check that every rank has exit code 0."""
    run = Ranks(folder, count, *arguments, program=program).wait()
    assert run.codes == [0] * count, "\n".join(run.outputs)
    return run


def _torchrun_variables(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets."""
    if count == 1:
        return {}
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in values.items()}


def _run_rank(folder: Path, variables: Mapping[str, str], program: str, arguments: list[str], largest_file: int | None) -> None:
    os.environ |= {"RUN_DIR": str(folder)} | dict(variables)
    output = os.open(folder / f"rank-{variables.get('RANK', '0')}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    module, _, function = program.rpartition(":")
    sys.exit(getattr(importlib.import_module(module or f"workloads.train.{program}"), function)(arguments))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
