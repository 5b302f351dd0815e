"""What must hold between settings, and between settings and the number of ranks. Each rule says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.train.settings import Settings

Problem = tuple[str, str]


def check_settings(settings: Settings, world_size: int) -> None:
    """Refuse settings that cannot work on this many ranks; all reasons at once."""
    problems = [*_sizes(settings), *_model(settings), *_parallel(settings, world_size), *_batch(settings, world_size), *_rest(settings)]
    if problems:
        lines = "\n".join(f"{what}\n  fix: {fix}" for what, fix in problems)
        raise SettingsError(lines, fix="mend each line above; nothing was started")


def data_ranks(settings: Settings, world_size: int) -> int:
    """Return how many ranks see different data."""
    return world_size // settings.parallel.tensor


def _sizes(settings: Settings) -> Iterator[Problem]:
    model, train, parallel = settings.model, settings.train, settings.parallel
    positive = {
        "model.vocabulary": model.vocabulary,
        "model.layers": model.layers,
        "model.width": model.width,
        "model.heads": model.heads,
        "model.kv_heads": model.kv_heads,
        "model.ffn_width": model.ffn_width,
        "train.steps": train.steps,
        "train.sequence_length": train.sequence_length,
        "train.global_batch": train.global_batch,
        "train.micro_batch": train.micro_batch,
        "parallel.tensor": parallel.tensor,
        "checkpoint.keep": settings.checkpoint.keep,
        "telemetry.print_every_steps": settings.telemetry.print_every_steps,
    }
    for key, value in positive.items():
        if value < 1:
            yield f"{key} is {value}", "give 1 or more"
    if not 0 <= model.dropout < 1:
        yield f"model.dropout is {model.dropout}", "give 0 or more and less than 1"


def _model(settings: Settings) -> Iterator[Problem]:
    model = settings.model
    if model.heads > 0 and (model.width % model.heads or (model.width // model.heads) % 2):
        yield (
            f"model.width ({model.width}) over model.heads ({model.heads}) is not an even number; rotary embedding turns pairs",
            "choose a width that is a multiple of 2 x heads",
        )
    if model.kv_heads > 0 and model.heads % model.kv_heads:
        yield (
            f"model.heads ({model.heads}) is no multiple of model.kv_heads ({model.kv_heads})",
            "each key head serves the same number of heads",
        )
    if model.experts and not 1 <= model.experts_per_token <= model.experts:
        yield f"model.experts_per_token is {model.experts_per_token} of {model.experts} experts", "give 1 to model.experts"


def _parallel(settings: Settings, world_size: int) -> Iterator[Problem]:
    model, tensor = settings.model, settings.parallel.tensor
    if tensor <= 1:
        return
    if world_size % tensor:
        yield f"{world_size} ranks are no multiple of parallel.tensor ({tensor})", "choose a divisor of the number of ranks"
    if settings.parallel.strategy != "fsdp":
        yield (
            f"parallel.tensor is {tensor} with strategy {settings.parallel.strategy}",
            "set parallel.strategy=fsdp: DDP cannot hold sharded matrices",
        )
    for key, value in (("model.kv_heads", model.kv_heads), ("model.ffn_width", model.ffn_width), ("model.vocabulary", model.vocabulary)):
        if value % tensor:
            yield f"{key} ({value}) is no multiple of parallel.tensor ({tensor})", "each rank holds an equal part of every matrix"
    if settings.train.sequence_length % tensor:
        yield (
            f"train.sequence_length ({settings.train.sequence_length}) is no multiple of parallel.tensor ({tensor})",
            "norms are split along the sequence",
        )
    if model.experts:
        yield "parallel.tensor with model.experts", "set parallel.tensor=1: experts are sharded by fsdp only"
    if model.dropout:
        yield "parallel.tensor with model.dropout", "set model.dropout=0: the ranks of one matrix would drop different values"


def _batch(settings: Settings, world_size: int) -> Iterator[Problem]:
    train = settings.train
    at_once = train.micro_batch * max(1, data_ranks(settings, world_size))
    if at_once > 0 and train.global_batch % at_once:
        yield (
            f"train.global_batch ({train.global_batch}) is no multiple of {at_once} = train.micro_batch ({train.micro_batch}) x data ranks",
            "choose a multiple, so that every rank accumulates the same number of micro-batches",
        )


def _rest(settings: Settings) -> Iterator[Problem]:
    if settings.data.source == "files" and not settings.data.files:
        yield "data.source is files and data.files is empty", "give the .json file that prepare_data.py wrote"
    if settings.data.source == "synthetic" and settings.data.files:
        yield "data.files is given and data.source is synthetic", "set data.source=files"
    watchdog, timeout_s = settings.watchdog, settings.parallel.timeout_s
    if watchdog.step_timeout_s and timeout_s <= max(watchdog.step_timeout_s, watchdog.startup_timeout_s):
        yield (
            f"parallel.timeout_s ({timeout_s}) is not above the watchdog's {watchdog.step_timeout_s} and {watchdog.startup_timeout_s}",
            "raise parallel.timeout_s, or lower the watchdog's: its message names the step and the phase",
        )
