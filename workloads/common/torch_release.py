"""The supported releases of torch, and everything that differs between them.

No other module asks for torch's version or chooses names by release; tests/contract/test_torch_guards.py checks that.

    2.8   async_save takes a stager (before, the writer is the stager), and may return an object with two futures instead of one
    2.8   torch._grouped_mm, for bf16 on Hopper; since 2.9 on every device; since 2.10 its public name is torch.nn.functional.grouped_mm
    2.11  enable_symm_mem_for_group is deprecated, but async tensor parallelism still does nothing without it: pytorch issue 193027
    2.13  gloo averages in reduce_scatter; some releases before sum instead, without an error: pytorch issue 162338
    2.13  all_gather_into_tensor and reduce_scatter_tensor have new names, and the old ones warn
    2.13 (or earlier: not in 2.7)  pipeline schedules work with gloo
    2.13 (or earlier: not in 2.7)  a pipeline schedule can be told not to keep the outputs of its micro-batches (return_outputs)
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

OLDEST, NEWEST = (2, 7), (2, 13)
# The address of a row and of a matrix that grouped_mm reads must be a multiple of this.
_GROUPED_ALIGNMENT_BYTES = 16


def version() -> str:
    """Return torch's version."""
    return str(torch.__version__)


def release(text: str = "") -> tuple[int, int]:
    """Return major and minor number of a version, by default of the installed one."""
    found = re.match(r"(\d+)\.(\d+)", text or version())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def require_supported(text: str = "") -> None:
    """Check a version of torch, by default the installed one.

    Raises:
        SettingsError: The release is not supported.
    """
    if not OLDEST <= release(text) <= NEWEST:
        oldest, newest = (".".join(map(str, part)) for part in (OLDEST, NEWEST))
        after = f"{NEWEST[0]}.{NEWEST[1] + 1}"
        raise SettingsError(
            f"torch {text or version()} is not supported; the programs need {oldest} to {newest}",
            fix=f'use an image with torch {oldest} to {newest}, or run: pip install "torch>={oldest},<{after}"',
        )


def reject_unsupported(program: str) -> int:
    """Print why the installed torch cannot run a program; return the exit code, or 0 if it can.

    Call it before importing anything else that uses torch: other releases may lack names that these modules import.
    """
    try:
        require_supported()
    except SettingsError as error:
        print(f"{program}: {error.what}\n  fix: {error.fix}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def gather(whole: Tensor, part: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Fill `whole` with the parts of all ranks, in the order of the ranks."""
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(whole, part, group=group)


def scatter_sum(part: Tensor, whole: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Fill `part` with this rank's part of the sum of `whole` over all ranks."""
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(part, whole, group=group)


def sums_instead_of_averaging(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Return whether an average over the ranks of a group, as of FSDP's gradients, is a sum; all ranks must call it."""
    ranks = dist.get_world_size(group)
    if device.type == "cuda" or ranks == 1 or release() >= NEWEST:
        return False
    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.ones(ranks), op=dist.ReduceOp.AVG, group=group)
    return part.item() != 1


def save_async(state: dict[str, Any], folder: Path, stager: Any, group: dist.ProcessGroup) -> Future[Any]:
    """Copy the state with `stager`, and write it into `folder` in the background; the result is complete when the files are written."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # noqa: PLC0415 - slow to import, and benchmarks do not need it
    from torch.distributed.checkpoint.state_dict_saver import async_save  # noqa: PLC0415 - the same

    writer: Any = FileSystemWriter(folder)
    options: dict[str, Any] = {"storage_writer": writer, "process_group": group}
    if "async_stager" in inspect.signature(async_save).parameters:
        options["async_stager"] = stager
    else:
        writer.stage = stager.stage
    written: Any = async_save(state, **options)
    return written if isinstance(written, Future) else written.upload_completion


def can_group_products(x_ND: Tensor, weight_EDF: Tensor) -> bool:
    """Return whether `grouped_product` takes operands of this type, shape and device."""
    if any(size * x_ND.element_size() % _GROUPED_ALIGNMENT_BYTES for size in weight_EDF.shape[1:]):
        return False
    if release() >= (2, 9):
        return True
    hopper = x_ND.device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(x_ND.device) == (9, 0)
    return release() == (2, 8) and hopper and x_ND.dtype == torch.bfloat16


def grouped_product(x_ND: Tensor, weight_EDF: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply each group of rows with its matrix; `ends_E` are the ends of the groups (int32)."""
    product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm  # noqa: SLF001 - its name before 2.10
    result: Tensor = product(x_ND, weight_EDF, offs=ends_E)
    return result


def overlap_tensor_parallelism(group: dist.ProcessGroup) -> None:
    """Let torch.compile split matrix products, and exchange their parts during the products (async tensor parallelism)."""
    import torch._inductor.config as inductor  # noqa: PLC0415 - slow to import, and few runs need it
    from torch.distributed import _symmetric_memory  # noqa: PLC0415 - the same

    inductor._micro_pipeline_tp = True  # noqa: SLF001 - torch has no other name for it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        _symmetric_memory.enable_symm_mem_for_group(group.group_name)


def require_pipeline(device: torch.device) -> None:
    """Check that the pipeline schedules of this release work on a device.

    Raises:
        SettingsError: They wait for the last of several messages only, which is enough for NCCL's groups of messages, but not for gloo.
    """
    from torch.distributed.pipelining import schedules  # noqa: PLC0415 - few runs need it

    if device.type != "cuda" and not hasattr(schedules, "_wait_batch_p2p"):
        raise SettingsError(
            f"parallel.pipeline does not work on a {device.type.upper()} with torch {version()}: its schedules lose messages of gloo",
            fix="use GPUs, or torch 2.13",
        )


def step_pipeline(schedule: Any, *arguments: Any, **options: Any) -> None:
    """Run a step of a pipeline schedule, and do not keep the outputs of its last stage if this release can do without."""
    if "return_outputs" in inspect.signature(schedule.step).parameters:
        options["return_outputs"] = False
    schedule.step(*arguments, **options)
