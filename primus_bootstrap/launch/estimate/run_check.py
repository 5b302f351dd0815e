"""Estimate a run before it is started or queued, and refuse one that does not fit into the memory of its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.estimate.rates import all_rates
from primus_bootstrap.launch.estimate.search import smallest_allocation
from primus_bootstrap.launch.estimate.verdict import DOES_NOT_FIT, TOO_CLOSE, estimate

if TYPE_CHECKING:
    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

REFUSE, WARN, SKIP = "refuse", "warn", "skip"  # not off: YAML reads it as false


def estimate_run(shape: ModelShape, recipe: Recipe, mode: str) -> str:
    """Return the estimate of a run in one line.

    Args:
        shape: The model.
        recipe: The recipe with the values of the user.
        mode: `refuse` a run that does not fit, `warn` only, or `skip` the estimate.

    Raises:
        PlanError: The run does not fit; the fix names a layout or an allocation that does.
    """
    if mode == SKIP:
        return "estimate: not computed (estimate=skip)"
    if recipe.gpu not in all_rates():
        known = ", ".join(all_rates())
        return f"estimate: not computed, because the model of the GPUs is not known; set gpu= to one of {known}"
    found = estimate(shape, recipe)
    memory = f"{found.fullest.total:.0f} of {found.available_gib:.0f} GiB per {recipe.gpu}"
    if found.verdict == DOES_NOT_FIT and mode == REFUSE:
        raise PlanError(f"the run does not fit into memory: it needs about {memory}", fix=_fix(shape, recipe))
    warning = " This run may end out of memory." if found.verdict in (TOO_CLOSE, DOES_NOT_FIT) else ""
    return f"estimate: {found.verdict}, {memory}; {found.step.total:.2f} s a step, {found.tokens_per_s:,.0f} tokens/s per GPU.{warning}"


def _fix(shape: ModelShape, recipe: Recipe) -> str:
    smallest = smallest_allocation(shape, recipe)
    anyway = "or start it anyway with estimate=warn"
    if smallest is None:
        return f"use a GPU with more memory, a smaller train.micro_batch or a shorter train.sequence_length, {anyway}"
    gpus, layout = smallest.recipe.layout.gpus, smallest.recipe.layout.text
    details = f"micro batch {smallest.recipe.batch.micro}, recompute {smallest.recipe.recompute.kind}"
    where = "with another layout" if gpus == recipe.layout.gpus else f"on {gpus} GPUs"
    return f"it fits {where} ({layout}, {details}), {anyway}"
