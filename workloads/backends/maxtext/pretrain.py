"""Pre-train a model with MaxText: `pretrain.py --run FILE -- SETTINGS OF MAXTEXT`; primus-cli writes FILE. One process per node."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.common.checkpoint_marks import newest_step
from workloads.backends.common.program import Training, main
from workloads.backends.common.step_writer import Device, device_of
from workloads.backends.maxtext import cpu_shim, log_lines, nodes
from workloads.backends.maxtext.checkpoints import Checkpoints

if TYPE_CHECKING:
    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.common.step_clock import StepClock
    from workloads.backends.common.step_writer import Step

_GIB = 2**30


class _Backend:
    """Trains, and reads the printed lines of the node that reports: the first one."""

    clock: StepClock
    reports = False

    def use_clock(self, clock: StepClock) -> None:
        self.clock = clock

    def read_step(self, line: str) -> Step | None:
        return log_lines.read_step(line) if self.reports else None

    def read_checkpoint(self, line: str) -> tuple[int, str] | None:
        return log_lines.read_checkpoint(line) if self.reports else None

    def train(self, facts: RunFacts, folder: Path, arguments: list[str]) -> bool:
        """Train; return whether the run stopped early, after it has written a checkpoint."""
        if cpu_shim.wanted():
            cpu_shim.install(facts.devices // nodes.count())
            arguments = cpu_shim.arguments(arguments)
        checkpoints = Checkpoints(facts, folder, self.clock)
        arguments = [*arguments, *checkpoints.arguments()]
        nodes.connect(facts)
        import jax  # noqa: PLC0415 - after the shim

        self.reports = jax.process_index() == 0
        if facts.resume == "auto" and newest_step(folder.parent, str(folder)) >= facts.steps:
            print(f"all {facts.steps} steps are done", flush=True)  # MaxText would report an error
            return False
        from workloads.backends.maxtext import trainer  # noqa: PLC0415 - after the shim and the connection

        trainer.train(arguments, checkpoints)
        return checkpoints.stopped


def _device(precision: str) -> Device:
    import jax  # noqa: PLC0415 - after the shim

    device = jax.local_devices()[0]
    return device_of(device.device_kind, int(getattr(device, "core_count", 0) or 0), precision, _memory_peak_gib)


def _memory_peak_gib() -> float:
    """Return the peak memory of the fullest GPU of this node; on a CPU that of the process."""
    import jax  # noqa: PLC0415 - after the shim

    found = [stats.get("peak_bytes_in_use", 0) for stats in (device.memory_stats() for device in jax.local_devices()) if stats]
    return max(found) / _GIB if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB


if __name__ == "__main__":
    maxtext = _Backend()
    training = Training(maxtext.train, maxtext.read_step, maxtext.read_checkpoint, _device, maxtext.use_clock)
    sys.exit(main("pretrain", training, sys.argv[1:]))
