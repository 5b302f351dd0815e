"""TorchTitan's trainer with this project's data, checkpoints and reaction to SIGTERM. Import it after the shim of the tests."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torchtitan.train as titan
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.config import ConfigManager
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
from torchtitan.tools.logging import init_logger

from workloads.backends.common.step_clock import require_finite
from workloads.backends.torchtitan.checkpoints import Checkpoints
from workloads.backends.torchtitan.data import SampleLoader, end_of_text, open_samples
from workloads.backends.torchtitan.log_lines import rate_line
from workloads.common.errors import SettingsError
from workloads.train.stop import StopRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims

    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.common.step_clock import StepClock

_OTHERS_S = 1.0  # time for the rank whose own loss is not finite to report it first
OWN_DATA = "primus"  # the data that data.source chooses, in training.dataset
SETTINGS = "settings"  # the flavor of a model that the settings describe


class Metrics(MetricsProcessor):  # type: ignore[misc]  # TorchTitan is not installed where types are checked
    """TorchTitan's metrics; they also print the learning rate, and stop the run if a value is not finite: TorchTitan trains on."""

    own_losses: torch.Tensor | float = 0.0  # NaN once a loss of this rank was not finite, otherwise 0; read only if it matters

    def log(
        self, step: int, global_avg_loss: float, global_max_loss: float, grad_norm: float, extra_metrics: dict[str, Any] | None = None
    ) -> None:
        """Print the lines of a step.

        Raises:
            NotFiniteError: A value is NaN or infinite. The step has no lines, as in the native trainer.
        """
        self._require_finite(step, global_avg_loss, grad_norm)
        if extra_metrics and "lr" in extra_metrics:
            print(rate_line(step, float(extra_metrics["lr"])), flush=True)
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)

    def _require_finite(self, step: int, loss: float, grad_norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        here = math.isnan(float(self.own_losses))
        if not here:
            time.sleep(_OTHERS_S)
        require_finite(step, loss, grad_norm, first_on=torch.distributed.get_rank() if here else None)


class Tokens:
    """What the attention masks of TorchTitan need of a tokenizer."""

    def __init__(self, eos_id: int) -> None:
        """Take the token between two documents."""
        self.eos_id = eos_id


class StoppableTrainer(titan.Trainer):  # type: ignore[misc]  # the same
    """Stops between two steps after SIGTERM on any rank, with a complete checkpoint, and reports each step to the clock."""

    clock: StepClock
    stopped = False
    _request: StopRequest | None = None

    def init_distributed(self) -> ParallelDims:
        """Create the process groups.

        Raises:
            SettingsError: The layout does not suit the number of ranks.
        """
        try:
            return super().init_distributed()
        except (AssertionError, ValueError) as error:
            fix = "change parallel.*, or the number of ranks"
            raise SettingsError(f"TorchTitan rejects the layout: {error}", fix=fix) from error

    def train(self) -> None:
        """Train to the last step or until SIGTERM. Without checkpoints, SIGTERM ends the process as usual."""
        if self.checkpointer.can_save:
            self._request = StopRequest()
            self.checkpointer.write = self.clock.timed("checkpoint", self.checkpointer.write)
        if self.job_config.validation.enable:
            self.validator.validate = self.clock.timed("validation", self.validator.validate)
        super().train()
        if self.checkpointer.can_save:
            self.checkpointer.finish()

    def should_continue_training(self) -> bool:
        """Return whether another step follows, and start its clock."""
        self.checkpointer.poll()
        if not super().should_continue_training():
            return False
        if self._request is None or not self._any_rank(self._request.received):
            self.clock.begin(self.step + 1)
            return True
        if self.step:
            self.checkpointer.save_and_stop(self.step)
        self.stopped = True
        return False

    def batch_generator(self, data_iterable: Iterable[Any]) -> Iterator[Any]:
        """Return the batches. The time to wait for one is the phase `data`."""
        batches = super().batch_generator(data_iterable)
        while True:
            with self.clock.phase("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def forward_backward_step(self, **batch: Any) -> torch.Tensor:
        """Return the loss of a micro-batch."""
        loss: torch.Tensor = super().forward_backward_step(**batch)
        if self.clock.spoils():
            loss = loss * math.nan
        self.metrics_processor.own_losses = self.metrics_processor.own_losses + 0.0 * loss.detach().sum()
        return loss

    def _any_rank(self, received: bool) -> bool:  # noqa: FBT001 - a value, not a choice
        flag = torch.tensor(int(received), device=self.device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())


def train(facts: RunFacts, arguments: Sequence[str], adjust: Any, clock: StepClock) -> bool:
    """Train with the configuration file of the arguments; return whether the run stopped early, after it has written a checkpoint.

    `adjust` may change the configuration. `clock` is told of each step.
    """
    init_logger()
    config = read_configuration(arguments[0])
    adjust(config)
    register_model(arguments[1:])
    _use_own_parts(config, facts)
    StoppableTrainer.clock = clock
    trainer = StoppableTrainer(config)
    try:
        trainer.train()
    finally:
        trainer.close()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return trainer.stopped


def read_configuration(path: str) -> JobConfig:
    """Return the configuration of a file, as TorchTitan's own parser reads it."""
    return ConfigManager().parse_args([f"--job.config_file={path}"])


def register_model(files: Sequence[str]) -> None:
    """Register the model that a file describes, if there is one, as a flavor of Llama 3."""
    for name in files:
        shape = TransformerModelArgs(**json.loads(Path(name).read_text("utf-8")))
        spec = get_train_spec("llama3")
        register_train_spec("llama3", dataclasses.replace(spec, model_args={**spec.model_args, SETTINGS: shape}))


def _use_own_parts(config: JobConfig, facts: RunFacts) -> None:
    """Replace TorchTitan's checkpoints and, unless a data set of TorchTitan is configured, its data."""
    from torchtitan.protocols import train_spec  # noqa: PLC0415 - to replace a registered model

    settings = facts.settings
    Checkpoints.resume, Checkpoints.at_end = facts.resume, bool(settings["checkpoint.at_end"])
    titan.CheckpointManager = Checkpoints
    spec = get_train_spec(config.model.name)
    parts: dict[str, Any] = {"build_metrics_processor_fn": lambda job, dimensions, _model=None, tag=None: Metrics(job, dimensions, tag)}
    if config.training.dataset == OWN_DATA:
        vocabulary = spec.model_args[config.model.flavor].vocab_size
        samples, batch = open_samples(settings, vocabulary), config.training.local_batch_size
        parts["build_tokenizer_fn"] = lambda _config: Tokens(end_of_text(settings, vocabulary))
        parts["build_dataloader_fn"] = lambda *, dp_world_size, dp_rank, **_other: SampleLoader(
            samples, batch=batch, rank=dp_rank, ranks=dp_world_size
        )
    train_spec._extra_train_specs[config.model.name] = dataclasses.replace(spec, **parts)  # noqa: SLF001 - it has no other way to replace one
