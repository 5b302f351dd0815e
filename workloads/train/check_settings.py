"""Check the settings against each other and against the number of ranks; `load_settings` checks the limits of each."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from workloads.common.errors import SettingsError
from workloads.common.layout import Layout
from workloads.train.combinations import COMBINATIONS, meets
from workloads.train.load_settings import value_of

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
        *_combinations(settings),
        *_ranks(settings, world_size),
        *_tensor(settings),
        *_context(settings),
        *_pipeline(settings, world_size),
        *_experts(settings, world_size),
        *_batch(settings, world_size),
        *_lora(settings),
        *_rest(settings),
    ]
    if problems:
        lines = "\n".join(f"{what}\n  fix: {fix}" for what, fix in problems)
        raise SettingsError(lines, fix="correct each line above; nothing was started")


def layout(settings: Settings) -> Layout:
    """Return how the ranks share the work."""
    parallel = settings.parallel
    return Layout(parallel.pipeline, parallel.context, parallel.tensor, parallel.expert)


def shard_ranks(settings: Settings, world_size: int) -> int:
    """Return the number of ranks with the same blocks and different tokens."""
    return max(1, world_size // (settings.parallel.pipeline * settings.parallel.tensor))


def data_ranks(settings: Settings, world_size: int) -> int:
    """Return the number of ranks with different sequences."""
    return max(1, shard_ranks(settings, world_size) // settings.parallel.context)


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


def _combinations(settings: Settings) -> Iterator[Problem]:
    tree = asdict(settings)
    for conditions, fix in COMBINATIONS:
        values = {name: value_of(tree, name) for name in conditions}
        if all(meets(values[name], condition) for name, condition in conditions.items()):
            yield f"{' and '.join(f'{name}={_text(value)}' for name, value in values.items())} do not work together", fix


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ranks(settings: Settings, world_size: int) -> Iterator[Problem]:
    parallel = settings.parallel
    product = parallel.pipeline * parallel.context * parallel.tensor
    if world_size % product:
        names = [f"parallel.{name}" for name in ("pipeline", "context", "tensor") if getattr(parallel, name) > 1]
        yield f"{world_size} ranks are not a multiple of {' x '.join(names)} ({product})", "choose a divisor of the number of ranks"


def _tensor(settings: Settings) -> Iterator[Problem]:
    model, tensor = settings.model, settings.parallel.tensor
    if tensor <= 1:
        return
    for key, value in (("model.kv_heads", model.kv_heads), ("model.ffn_width", model.ffn_width), ("model.vocabulary", model.vocabulary)):
        if value % tensor:
            yield (
                f"{key} ({value}) is not a multiple of parallel.tensor ({tensor})",
                "choose a multiple: each rank has an equal part of each matrix",
            )
    length, context = settings.train.sequence_length, settings.parallel.context
    if length % (tensor * context):
        yield (
            f"train.sequence_length ({length}) is not a multiple of {tensor * context} = parallel.tensor x parallel.context",
            "choose a multiple: norms are split along the sequence",
        )


def _context(settings: Settings) -> Iterator[Problem]:
    length, context = settings.train.sequence_length, settings.parallel.context
    if context > 1 and length % (2 * context):
        yield (
            f"train.sequence_length ({length}) is not a multiple of {2 * context} = 2 x parallel.context",
            "choose a multiple: each rank has two equal chunks of a sequence",
        )


def _pipeline(settings: Settings, world_size: int) -> Iterator[Problem]:
    parallel, train, layers = settings.parallel, settings.train, settings.model.layers
    stages = parallel.pipeline * parallel.virtual_pipeline
    if stages <= 1:
        return
    if layers < stages:
        yield (
            f"model.layers ({layers}) is less than the {stages} stages of parallel.pipeline x parallel.virtual_pipeline",
            "choose fewer stages",
        )
    passes = train.global_batch // (train.micro_batch * data_ranks(settings, world_size))
    rounds = max(1, passes // parallel.pipeline)
    if passes < parallel.pipeline or (parallel.virtual_pipeline > 1 and passes % rounds):
        yield (
            f"{passes} micro-batches per rank and step do not fill {parallel.pipeline} ranks of parallel.pipeline",
            f"change train.global_batch or train.micro_batch: give each rank a multiple of {parallel.pipeline} micro-batches",
        )


def _experts(settings: Settings, world_size: int) -> Iterator[Problem]:
    model, expert, ranks = settings.model, settings.parallel.expert, shard_ranks(settings, world_size)
    if expert <= 1:
        return
    if model.experts % expert:
        yield f"model.experts ({model.experts}) is not a multiple of parallel.expert ({expert})", "choose a divisor of model.experts"
    if ranks % expert:
        yield f"{ranks} ranks with different tokens are not a multiple of parallel.expert ({expert})", "choose a divisor of their number"
        return
    for key, value in (("model.width", model.width), ("model.ffn_width", model.ffn_width)):
        if value % (ranks // expert):
            yield f"{key} ({value}) is not a multiple of the {ranks // expert} ranks that share each expert", "raise parallel.expert"


def _lora(settings: Settings) -> Iterator[Problem]:
    lora = settings.lora
    if not lora.rank:
        return
    matrices = [f"attention.{name}" for name in ("query", "key", "value", "output")]
    matrices += [] if settings.model.experts else ["ffn.gate", "ffn.up", "ffn.down"]
    unknown = [name for name in lora.targets if name not in matrices]
    if unknown or not lora.targets:
        yield f"lora.targets is {','.join(lora.targets) or 'empty'}", f"choose from: {', '.join(matrices)}"


def _batch(settings: Settings, world_size: int) -> Iterator[Problem]:
    train = settings.train
    per_pass = train.micro_batch * data_ranks(settings, world_size)
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
