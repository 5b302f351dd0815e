"""Pre-train a model with TorchTitan: `torchrun … pretrain.py --run FILE -- CONFIGURATION [SHAPE]`; primus-cli writes these files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.common.program import Training, main
from workloads.backends.common.step_writer import Device, Step, device_of
from workloads.backends.torchtitan import cpu_shim
from workloads.backends.torchtitan.log_lines import StepLines, read_checkpoint

if TYPE_CHECKING:
    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.common.step_clock import StepClock

_RANK, _RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
_REPORTS = _RANK == _RANKS - 1  # every rank prints steps; with a pipeline, only the last stage knows the loss


class _Backend:
    """Trains, and reads the printed lines of the rank that reports."""

    lines: StepLines | None = None
    clock: StepClock

    def use_clock(self, clock: StepClock) -> None:
        self.clock = clock

    def read_step(self, line: str) -> Step | None:
        return self.lines.read_step(line) if self.lines else None

    def read_checkpoint(self, line: str) -> tuple[int, str] | None:
        return read_checkpoint(line) if self.lines else None

    def train(self, facts: RunFacts, _checkpoints: Path, arguments: list[str]) -> bool:
        """Train; return whether the run stopped early, after it has written a checkpoint."""
        self.lines = StepLines(facts, _RANKS) if _REPORTS else None
        if cpu_shim.wanted():
            cpu_shim.install()
        from workloads.backends.torchtitan import trainer  # noqa: PLC0415 - after the shim

        return trainer.train(facts, arguments, cpu_shim.adjust if cpu_shim.wanted() else lambda _config: None, self.clock)


def _device(precision: str) -> Device:
    import torch  # noqa: PLC0415 - after the shim

    from workloads.common import device as devices  # noqa: PLC0415 - imports torch

    device = torch.device("cpu" if cpu_shim.wanted() else "cuda")
    return device_of(devices.device_name(device), devices.compute_units(device), precision, lambda: devices.peak_memory_gib(device))


if __name__ == "__main__":
    titan = _Backend()
    training = Training(titan.train, titan.read_step, titan.read_checkpoint, _device, titan.use_clock)
    sys.exit(main("pretrain", training, sys.argv[1:]))
