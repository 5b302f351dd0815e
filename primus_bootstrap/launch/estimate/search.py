"""Search the layouts of a model on a number of GPUs: those that fit, the fastest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.estimate.accounting import MEGATRON
from primus_bootstrap.launch.estimate.memory import memory
from primus_bootstrap.launch.estimate.rates import GPUS_PER_HOST, rates_of
from primus_bootstrap.launch.estimate.verdict import DOES_NOT_FIT, FITS, TOO_CLOSE, Estimate, estimate, verdict_of
from primus_bootstrap.launch.recipes.recipe import DERIVED, DISTRIBUTED_OPTIMIZER, FSDP, FULL, NONE, SELECTIVE, Layout, Recipe, Recompute
from primus_bootstrap.launch.recipes.validity import problems

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.launch.recipes.model_shape import ModelShape

_SIZES = (1, 2, 4, 8, 16)
_MICRO = (1, 2, 4, 8)
_LARGEST_ALLOCATION = 16_384
# Longer sequences are split over context ranks.
_CONTEXT_FROM = 32_768
# Settings that belong to one layout; the search does not keep them.
_OF_A_LAYOUT = (
    "pipeline_model_parallel_layout",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "ici_fsdp_parallelism",
    "ici_expert_parallelism",
    "training.local_batch_size",
    "recompute_modules",
    "remat_policy",
    "activation_checkpoint.selective_ac_option",
)


@dataclass(frozen=True)
class Found:
    """The result: the estimates that fit, fastest first, and how many layouts were examined."""

    best: tuple[Estimate, ...]
    examined: int


def search(shape: ModelShape, recipe: Recipe, *, most: int = 5) -> Found:
    """Return the fastest layouts that fit on the recipe's GPUs, with its global batch and sequence length.

    A layout whose verdict is `too close` is returned only if no other fits.
    """
    available_gib, examined = rates_of(recipe.gpu).memory_gib, 0
    by_verdict: dict[str, list[Recipe]] = {FITS: [], TOO_CLOSE: [], DOES_NOT_FIT: []}
    for candidate in _candidates(shape, recipe):
        examined += 1
        by_verdict[verdict_of(memory(shape, candidate), available_gib)].append(candidate)
    found = [estimate(shape, candidate) for candidate in by_verdict[FITS] or by_verdict[TOO_CLOSE]]
    return Found(tuple(sorted(found, key=lambda item: -item.tokens_per_s)[:most]), examined)


def smallest_allocation(shape: ModelShape, recipe: Recipe) -> Estimate | None:
    """Return the fastest layout on the smallest number of GPUs on which one fits, from one host to 16,384 GPUs; None if none does."""
    gpus = min(recipe.layout.gpus, GPUS_PER_HOST)
    while gpus <= _LARGEST_ALLOCATION:
        found = search(shape, replace(recipe, layout=replace(recipe.layout, gpus=gpus)), most=1).best
        if found:
            return found[0]
        gpus *= 2
    return None


def _candidates(shape: ModelShape, recipe: Recipe) -> Iterator[Recipe]:
    kept = {name: value for name, value in recipe.keys.items() if name not in _OF_A_LAYOUT}
    for layout in _layouts(shape, recipe):
        keys = {**kept, **_uneven(shape, recipe, layout)}
        for micro in _MICRO:
            for recompute in _recomputes(recipe.backend):
                candidate = replace(
                    recipe,
                    name=f"{shape.name}-{recipe.backend}-search",
                    layout=layout,
                    batch=replace(recipe.batch, micro=micro),
                    recompute=recompute,
                    keys=keys,
                    evidence=DERIVED,
                    source="primus-cli estimate --search",
                )
                if not problems(candidate, shape):
                    yield candidate


def _uneven(shape: ModelShape, recipe: Recipe, layout: Layout) -> Mapping[str, object]:
    """Return Megatron's settings that count the embedding and the output as a layer each, if only then the pipeline divides the layers."""
    chunks = layout.pipeline * layout.virtual_pipeline
    if recipe.backend != MEGATRON or shape.layers % chunks == 0 or (shape.layers + 2) % chunks:
        return {}
    return dict.fromkeys(("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"), True)


def _recomputes(backend: str) -> tuple[Recompute, ...]:
    kinds = (NONE, FULL) if backend == MEGATRON else (NONE, SELECTIVE, FULL)
    return tuple(Recompute(kind) for kind in kinds)


def _layouts(shape: ModelShape, recipe: Recipe) -> Iterator[Layout]:
    gpus = recipe.layout.gpus
    contexts = _SIZES if recipe.batch.length >= _CONTEXT_FROM else (1,)
    experts = [size for size in (*_SIZES, 32, 64) if shape.experts and size <= shape.experts.count] or [1]
    for tensor in (size for size in _SIZES if size <= GPUS_PER_HOST):
        for pipeline in (size for size in _SIZES if recipe.backend == MEGATRON or size == 1):
            for virtual in (1, 2, 4) if pipeline > 1 else (1,):
                for context in contexts:
                    for expert in experts:
                        if gpus % (tensor * pipeline * context) == 0:
                            data = DISTRIBUTED_OPTIMIZER if recipe.backend == MEGATRON else FSDP
                            yield Layout(gpus, tensor, pipeline, virtual, context, expert, data)
