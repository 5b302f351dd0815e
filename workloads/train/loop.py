"""The training loop: resume, train steps, write checkpoints, stop."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workloads.common import torch_release
from workloads.common.device import peak_memory_gib, synchronise
from workloads.common.errors import STOPPED_EARLY, NotFiniteError, SettingsError, StorageError
from workloads.common.step_files import StepRecord
from workloads.train.checkpoint import Checkpoints
from workloads.train.context import own_context
from workloads.train.data import Batches, Part
from workloads.train.fault_injection import FaultInjector
from workloads.train.hugging_face import is_hugging_face, load_weights, require_replaceable, save_weights
from workloads.train.load_settings import known_settings, value_of
from workloads.train.parallel import build_model
from workloads.train.schedule import learning_rate
from workloads.train.step import GlobalStats, Gradients, LocalStats, apply_gradients, compute_gradients, make_optimizer, reduce_stats
from workloads.train.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.common.process_group import Group
    from workloads.train.data import Batch, Samples
    from workloads.train.settings import Settings
    from workloads.train.stop import StopRequest
    from workloads.train.watchdog import Watchdog


class Trainer:
    """One run on this rank. `step` and `sequence` are the numbers of steps and sequences that the weights were trained on."""

    def __init__(self, settings: Settings, folder: Path, group: Group, watchdog: Watchdog, stop: StopRequest) -> None:
        """Build model and optimizer, and load the newest good checkpoint."""
        if settings.checkpoint.export:
            require_replaceable(Path(settings.checkpoint.export))
        self.settings, self.folder = settings, folder
        self.group, self.watchdog, self.stop = group, watchdog, stop
        self.fault_injector = FaultInjector(settings.drill, folder, group.rank)
        self.model = build_model(settings, group)
        self.optimizer = make_optimizer(self.model, settings, group.device)
        self.checkpoints = Checkpoints(Path(settings.checkpoint.folder or folder / "checkpoints"), settings.checkpoint, group)
        self.step, self.sequence = 0, 0
        self._resume()

    def run(self, samples: Samples) -> int:
        """Train to the last step; return the exit code."""
        telemetry = Telemetry(self.folder, self.settings, self.group) if self.group.is_first else None
        try:
            return self._run(samples, telemetry)
        finally:
            if telemetry:
                telemetry.ended()

    def _run(self, samples: Samples, telemetry: Telemetry | None) -> int:
        last, first = self.settings.train.steps, self.step + 1
        context = own_context(self.group, self.settings.train.sequence_length)
        batches = Batches(
            samples,
            self.settings,
            Part(self.group.data_rank, self.group.data_ranks, context.positions() if context else None),
            steps=max(0, last - self.step),
            first_sequence=self.sequence,
        )
        stopped, ended, saving_s = False, time.perf_counter(), 0.0
        while self.step < last and not stopped:
            self._start_clock(startup=self.step + 1 == first)
            stats, rate = self._train(batches)
            started, ended = ended, time.perf_counter()
            if telemetry:
                telemetry.write(self._record(telemetry, stats, rate, step_time_s=ended - started, saving_s=saving_s))
            stopped = stats.stop_asked and self.step < last
            self._save_if_due(final=stopped or (self.step == last and self.settings.checkpoint.at_end))
            saving_s = time.perf_counter() - ended
        batches.close()
        self._export(stopped=stopped)
        self.checkpoints.close()
        if telemetry:
            telemetry.close("stopped early" if stopped else "done")
        return STOPPED_EARLY if stopped else 0

    def _train(self, batches: Batches) -> tuple[GlobalStats, float]:
        """Train one step; return the statistics of all ranks and the learning rate."""
        step = self.step + 1
        own_part = self.group.pipeline_rank * self.group.shard_ranks + self.group.shard_rank
        torch.manual_seed(step_seed(self.settings.train.seed, step, own_part))
        started = time.perf_counter()
        with self.watchdog.phase("data"):
            self.fault_injector.before(step)
            micro_batches = batches.next_step()
        data_wait_s = time.perf_counter() - started
        with self.watchdog.phase("forward_backward"):
            gradients = self._compute(step, micro_batches)
        with self.watchdog.phase("exchange"):
            self.checkpoints.poll()
            local = LocalStats(self.stop.received, self.checkpoints.exhausted, data_wait_s, peak_memory_gib(self.group.device))
            stats = reduce_stats(gradients, local, self.group)
        self._check(stats, step)
        rate = learning_rate(self.settings.optimizer, step, self.settings.train.steps)
        with self.watchdog.phase("optimizer"):
            apply_gradients(self.model, self.optimizer, gradients, rate=rate, clip_norm=self.settings.train.clip_norm)
            synchronise(self.group.device)
        self.step, self.sequence = step, self.sequence + self.settings.train.global_batch
        return stats, rate

    def _compute(self, step: int, micro_batches: list[Batch]) -> Gradients:
        gradients = compute_gradients(self.model, micro_batches, self.settings, self.group)
        return self.fault_injector.after(gradients, step)

    def _check(self, stats: GlobalStats, step: int) -> None:
        """Stop before non-finite gradients are applied, or if checkpoints cannot be written."""
        if stats.checkpoints_exhausted:
            self.checkpoints.wait()
            self.checkpoints.check()
        if math.isfinite(stats.loss) and math.isfinite(stats.grad_norm):
            return
        self.checkpoints.wait()
        what = (
            f"loss is not finite ({stats.loss}) at step {step}, first on rank {stats.bad_rank}"
            if stats.bad_rank is not None
            else f"gradient is not finite ({stats.grad_norm}) at step {step}; the loss is {stats.loss}"
        )
        raise NotFiniteError(
            f"{what}; the newest checkpoint is of step {self.checkpoints.last_step}",
            fix="resume with a lower optimizer.lr or train.clip_norm; if it is always the same node, drain and check that node",
        )

    def _save_if_due(self, *, final: bool) -> None:
        every = self.settings.checkpoint.every_steps
        if not final and not (every and self.step % every == 0):
            return
        with self.watchdog.phase("checkpoint"):
            self._start_clock(startup=False)
            self.checkpoints.save(self.step, self.model, self.optimizer, self._facts())
            if not final:
                return
            self.checkpoints.wait()
        if self.checkpoints.last_step != self.step:
            raise StorageError(
                f"the last checkpoint could not be written to {self.checkpoints.folder}: {self.checkpoints.last_failure}",
                fix="free space or repair the storage, then restart the run: it resumes from the newest complete checkpoint",
            )

    def _export(self, *, stopped: bool) -> None:
        """Write the weights in the format of Hugging Face after the last step, if the settings ask for it."""
        if stopped or not self.settings.checkpoint.export:
            return
        folder = Path(self.settings.checkpoint.export)
        with self.watchdog.phase("checkpoint"):
            self._start_clock(startup=False)
            save_weights(folder, self.model, self.settings, is_first=self.group.is_first)
        self._print(f"weights of Hugging Face written to {folder}")

    def _resume(self) -> None:
        """Load the newest good checkpoint, or the weights of another run, or nothing."""
        resume, start_from = self.settings.checkpoint.resume, self.settings.checkpoint.start_from
        path = None
        if resume == "auto" or (resume != "never" and self.checkpoints.were_resumed_from(resume)):
            path = self.checkpoints.newest_good()
        elif resume != "never":
            path = Path(resume)
            self.checkpoints.require_good(path)
        if path:
            manifest = self.checkpoints.read(path)
            self._compare(manifest.facts["settings"], path)
            self.checkpoints.load(path, self.model, self.optimizer)
            self.step, self.sequence = manifest.step, manifest.facts["sequence"]
            self._print(f"resumed from {path}: step {self.step}, sequence {self.sequence}, written by {manifest.facts['world_size']} ranks")
        elif start_from and is_hugging_face(Path(start_from)):
            load_weights(Path(start_from), self.model, self.settings.model)
            self._print(f"weights of Hugging Face from {start_from}")
        elif start_from:
            self.checkpoints.require_good(Path(start_from))
            self._compare(self.checkpoints.read(Path(start_from)).facts["settings"], Path(start_from), fixed=("model.",))
            self.checkpoints.load_weights(Path(start_from), self.model)
            self._print(f"weights from {start_from}")

    def _compare(self, before: Mapping[str, Any], path: Path, *, fixed: tuple[str, ...] = ("model.", "lora.")) -> None:
        """Raise an error for a checkpoint of another model, by the sections in `fixed`; print the other settings that changed."""
        changed = []
        for known in known_settings():
            old, new = value_of(before, known.key), value_of(asdict(self.settings), known.key)
            if old is not None and old != new and not (isinstance(new, tuple) and list(new) == old):
                changed.append(f"{known.key} {old} -> {new}")
        other_model = [
            text for text in changed if text.startswith(fixed) and not text.startswith(("model.dropout", "model.balance_weight"))
        ]
        if other_model:
            raise SettingsError(
                f"{path} is of another model: {', '.join(other_model)}", fix="restore these settings, or use a new folder for the run"
            )
        if changed:
            self._print(f"changed since {path.name}: {', '.join(changed)}")

    def _facts(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "world_size": self.group.world_size,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "torch": torch_release.version(),
            "settings": asdict(self.settings),
        }

    def _record(self, telemetry: Telemetry, stats: GlobalStats, rate: float, *, step_time_s: float, saving_s: float) -> StepRecord:
        return StepRecord(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            step=self.step,
            loss=stats.loss,
            balance_loss=stats.balance_loss if self.settings.model.experts else None,
            grad_norm=stats.grad_norm,
            learning_rate=rate,
            tokens=self.sequence * self.settings.train.sequence_length,
            step_time_s=step_time_s,
            data_wait_s=stats.data_wait_s,
            checkpoint_wait_s=saving_s,
            memory_peak_gib=stats.memory_peak_gib,
            checkpoint=self.checkpoints.state,
            checkpoint_step=self.checkpoints.last_step,
            checkpoint_failures=self.checkpoints.failures,
            **telemetry.speed(step_time_s),
        )

    def _start_clock(self, *, startup: bool) -> None:
        limits = self.settings.watchdog
        limit_s = max(limits.startup_timeout_s, limits.step_timeout_s) if startup else limits.step_timeout_s
        self.watchdog.progress(self.step + 1, limit_s=limit_s if limits.step_timeout_s else 0.0)

    def _print(self, text: str) -> None:
        if self.group.is_first:
            print(text, flush=True)


def step_seed(seed: int, step: int, part: int) -> int:
    """Return the random seed of a step for one part of the model and the batch.

    It depends on the step only, so a resumed run needs no random state.
    """
    return ((seed * 1_000_003 + step) * 1_000_003 + part) % 2**63
