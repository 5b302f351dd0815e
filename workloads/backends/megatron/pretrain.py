"""Pre-train a model with Megatron-LM: `torchrun … pretrain.py --run FILE -- ARGUMENTS OF MEGATRON-LM`; primus-cli writes FILE."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.common.program import Training, main
from workloads.backends.common.step_writer import Device, device_of
from workloads.backends.megatron import cpu_shim
from workloads.backends.megatron.data_files import require_data
from workloads.backends.megatron.log_lines import read_checkpoint, read_step, rejected_result
from workloads.backends.megatron.optimizer_resume import correct_resume
from workloads.backends.megatron.python_version import complete_typing
from workloads.backends.megatron.resume import load_arguments
from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.common.step_clock import StepClock


class _Backend:
    """Trains with the clock of the steps."""

    clock: StepClock

    def use_clock(self, clock: StepClock) -> None:
        self.clock = clock

    def train(self, facts: RunFacts, checkpoints: Path, arguments: list[str]) -> bool:
        """Train; return whether the run stopped early, after it has written a checkpoint."""
        return _train(facts, checkpoints, arguments, self.clock)


def _train(facts: RunFacts, checkpoints: Path, arguments: list[str], clock: StepClock) -> bool:
    require_data(facts.settings)
    complete_typing()
    if cpu_shim.wanted():
        cpu_shim.install()
        arguments = cpu_shim.arguments(arguments)
    # Megatron-LM reads the arguments of the process.
    sys.argv = ["pretrain.py", *arguments, *load_arguments(checkpoints, facts.resume, facts.start_from)]
    import torch  # noqa: PLC0415 - after the shim
    from megatron.training import get_args, training  # noqa: PLC0415 - the same

    from workloads.backends.megatron import model  # noqa: PLC0415 - the same

    if cpu_shim.wanted():
        cpu_shim.adjust()
    _use_compiled_helpers()
    correct_resume()
    for name, phase in (("save_checkpoint", "checkpoint"), ("evaluate_and_print_results", "validation")):
        setattr(training, name, clock.timed(phase, getattr(training, name)))
    training.training_log = _with_each_step_alone(training.training_log)
    early = False
    try:
        training.pretrain(_configuration(), model.datasets, _model_type(), model.ForwardStep(clock))
    except RuntimeError as error:
        found = rejected_result(error, clock.step)
        if found is None:
            raise
        raise found from error
    except SystemExit as ended:  # Megatron-LM has received SIGTERM or reached a limit of time, and has written a checkpoint
        if ended.code:
            raise
        early = int(get_args().curr_iteration) + 1 < facts.steps
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return early


def _with_each_step_alone(log: Callable[..., Any]) -> Callable[..., Any]:
    """Return Megatron-LM's function that logs a step, without the exception for the first one, after which it keeps its sums.

    Otherwise the second line after each start has the mean loss and time of two steps.
    """
    return lambda *args, **kwargs: log(*args, **{**kwargs, "is_first_iteration": False})


def _use_compiled_helpers() -> None:
    """Leave the compilation of the data sets' helpers out: the wheel has the compiled module, and no makefile."""
    from megatron.core.datasets import utils  # noqa: PLC0415 - after the shim

    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp"):
        utils.compile_helpers = lambda: None


def _configuration() -> object:
    from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args  # noqa: PLC0415 - after the shim
    from megatron.training.arguments import parse_and_validate_args  # noqa: PLC0415 - the same

    try:
        args = parse_and_validate_args()
    except (AssertionError, RuntimeError, ValueError) as error:
        fix = "change parallel.* or megatron.*; the number of ranks may not suit the layout"
        raise SettingsError(f"Megatron-LM rejects the settings: {error}", fix=fix) from error
    return pretrain_cfg_container_from_args(args, gpt_config_from_args(args))


def _model_type() -> object:
    from megatron.core.enums import ModelType  # noqa: PLC0415 - after the shim

    return ModelType.encoder_or_decoder


def _device(precision: str) -> Device:
    import torch  # noqa: PLC0415 - after the shim

    from workloads.common import device as devices  # noqa: PLC0415 - imports torch

    device = torch.device("cpu" if cpu_shim.wanted() else "cuda")
    return device_of(devices.device_name(device), devices.compute_units(device), precision, lambda: devices.peak_memory_gib(device))


if __name__ == "__main__":
    megatron = _Backend()
    sys.exit(main("pretrain", Training(megatron.train, read_step, read_checkpoint, _device, megatron.use_clock), sys.argv[1:]))
