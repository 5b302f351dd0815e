"""Check the settings against each other and against the number of ranks; `load_settings` checks the limits of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.train.settings import Settings

Problem = tuple[str, str]


def check_settings(settings: Settings, world_size: int) -> None:
    """Check the settings for this number of ranks.

    Raises:
        SettingsError: The settings are inconsistent; the message contains all problems.
    """
    problems = [
        *_model(settings),
        *_parallel(settings, world_size),
        *_batch(settings, world_size),
        *_lora(settings),
        *_rest(settings),
    ]
    if problems:
        lines = "\n".join(f"{what}\n  fix: {fix}" for what, fix in problems)
        raise SettingsError(lines, fix="correct each line above; nothing was started")


def data_ranks(settings: Settings, world_size: int) -> int:
    """Return the number of ranks with different data."""
    return world_size // max(1, settings.parallel.tensor)


def _model(settings: Settings) -> Iterator[Problem]:
    model = settings.model
    if model.heads > 0 and (model.width % model.heads or (model.width // model.heads) % 2):
        yield (
            f"model.width ({model.width}) over model.heads ({model.heads}) is not an even number, which rotary embedding requires",
            "choose a width that is a multiple of 2 x heads",
        )
    if model.kv_heads > 0 and model.heads % model.kv_heads:
        yield (
            f"model.heads ({model.heads}) is not a multiple of model.kv_heads ({model.kv_heads})",
            "choose a multiple: each key head is shared by the same number of heads",
        )
    if model.experts and not 1 <= model.experts_per_token <= model.experts:
        yield f"model.experts_per_token is {model.experts_per_token} of {model.experts} experts", "give 1 to model.experts"


def _parallel(settings: Settings, world_size: int) -> Iterator[Problem]:
    model, tensor = settings.model, settings.parallel.tensor
    if tensor <= 1:
        return
    if world_size % tensor:
        yield f"{world_size} ranks are not a multiple of parallel.tensor ({tensor})", "choose a divisor of the number of ranks"
    if settings.parallel.strategy != "fsdp":
        yield (
            f"parallel.tensor is {tensor} with strategy {settings.parallel.strategy}",
            "set parallel.strategy=fsdp: DDP does not support sharded matrices",
        )
    for key, value in (("model.kv_heads", model.kv_heads), ("model.ffn_width", model.ffn_width), ("model.vocabulary", model.vocabulary)):
        if value % tensor:
            yield (
                f"{key} ({value}) is not a multiple of parallel.tensor ({tensor})",
                "choose a multiple: each rank has an equal part of each matrix",
            )
    if settings.train.sequence_length % tensor:
        yield (
            f"train.sequence_length ({settings.train.sequence_length}) is not a multiple of parallel.tensor ({tensor})",
            "choose a multiple: norms are split along the sequence",
        )
    if model.experts:
        yield "parallel.tensor with model.experts", "set parallel.tensor=1: only fsdp shards experts"
    if model.dropout:
        yield "parallel.tensor with model.dropout", "set model.dropout=0: the ranks of one matrix would drop different values"


def _lora(settings: Settings) -> Iterator[Problem]:
    lora = settings.lora
    if not lora.rank:
        return
    matrices = [f"attention.{name}" for name in ("query", "key", "value", "output")]
    matrices += [] if settings.model.experts else ["ffn.gate", "ffn.up", "ffn.down"]
    unknown = [name for name in lora.targets if name not in matrices]
    if unknown or not lora.targets:
        yield f"lora.targets is {','.join(lora.targets) or 'empty'}", f"choose from: {', '.join(matrices)}"
    if settings.parallel.tensor > 1:
        yield "parallel.tensor with lora.rank", "set parallel.tensor=1: frozen weights need little memory, and fsdp shards them"


def _batch(settings: Settings, world_size: int) -> Iterator[Problem]:
    train = settings.train
    per_pass = train.micro_batch * max(1, data_ranks(settings, world_size))
    if per_pass > 0 and train.global_batch % per_pass:
        yield (
            f"train.global_batch ({train.global_batch}) is not a multiple of {per_pass} = train.micro_batch x data ranks",
            "choose a multiple: every rank accumulates the same number of micro-batches",
        )


def _rest(settings: Settings) -> Iterator[Problem]:
    optimizer = settings.optimizer
    if 0 < optimizer.decay_steps <= optimizer.warmup_steps:
        yield (
            f"optimizer.decay_steps ({optimizer.decay_steps}) is not above optimizer.warmup_steps ({optimizer.warmup_steps})",
            "raise optimizer.decay_steps, or set it to 0 for train.steps",
        )
    if settings.data.source == "files" and not settings.data.files:
        yield "data.source is files and data.files is empty", "set data.files to a .json file of prepare_data.py"
    if settings.data.source == "synthetic" and settings.data.files:
        yield "data.files is set and data.source is synthetic", "set data.source=files"
    watchdog, timeout_s = settings.watchdog, settings.parallel.timeout_s
    if watchdog.step_timeout_s and timeout_s <= max(watchdog.step_timeout_s, watchdog.startup_timeout_s):
        yield (
            f"parallel.timeout_s ({timeout_s}) is not above the watchdog's {watchdog.step_timeout_s} and {watchdog.startup_timeout_s}",
            "raise parallel.timeout_s, or lower the watchdog's limits: its message names the step and the phase",
        )
