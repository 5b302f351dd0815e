"""The estimate of a recipe: memory per pipeline stage, a verdict, and the speed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.estimate.memory import StageMemory, memory
from primus_bootstrap.launch.estimate.rates import Rates, rates_of
from primus_bootstrap.launch.estimate.speed import StepTime, step_time, tokens_per_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

SCHEMA = "primus.estimate/1"
FITS, TOO_CLOSE, DOES_NOT_FIT = "fits", "too close", "does not fit"
# The share of the estimate that an allocator's fragmentation and the error of the estimate can add, and that the error can take away.
# docs/estimate.md compares the estimates with published runs.
MARGIN, TOLERANCE = 0.10, 0.05


@dataclass(frozen=True)
class Estimate:
    """The estimate of one recipe on its GPUs. Memory in GiB of the fullest GPU, speed per GPU."""

    recipe: Recipe
    stages: tuple[StageMemory, ...]
    available_gib: float
    step: StepTime
    tokens_per_s: float
    tflops: float
    mfu: float  # share of the bf16 peak, 0 to 1
    rates: Rates

    @property
    def fullest(self) -> StageMemory:
        """The stage with the largest peak."""
        return max(self.stages, key=lambda item: item.total)

    @property
    def margin_gib(self) -> float:
        """Free memory of the fullest GPU, negative if there is not enough."""
        return self.available_gib - self.fullest.total

    @property
    def verdict(self) -> str:
        """Whether the recipe fits."""
        return verdict_of(self.stages, self.available_gib)

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as plain data."""
        recipe = self.recipe
        return {
            "schema": SCHEMA,
            "recipe": recipe.name,
            "model": recipe.model,
            "backend": recipe.backend,
            "gpu": recipe.gpu,
            "gpus": recipe.layout.gpus,
            "precision": recipe.precision,
            "verdict": self.verdict,
            "memory_gib": round(self.fullest.total, 1),
            "available_gib": self.available_gib,
            "margin_gib": round(self.margin_gib, 1),
            "stages": [{**_rounded(stage), "total": round(stage.total, 1)} for stage in self.stages],
            "step_time_s": round(self.step.total, 3),
            "step_parts_s": {name: round(value, 4) for name, value in asdict(self.step).items()},
            "tokens_per_s_per_gpu": round(self.tokens_per_s, 1),
            "tflops_per_s_per_gpu": round(self.tflops, 1),
            "mfu": round(self.mfu, 3),
        }


def verdict_of(stages: Sequence[StageMemory], available_gib: float) -> str:
    """Return whether the fullest stage fits."""
    total = max(stage.total for stage in stages)
    if total * (1 + MARGIN) <= available_gib:
        return FITS
    return DOES_NOT_FIT if total * (1 - TOLERANCE) > available_gib else TOO_CLOSE


def _rounded(stage: StageMemory) -> dict[str, Any]:
    return {item.name: round(getattr(stage, item.name), 2) for item in fields(stage)}


def estimate(shape: ModelShape, recipe: Recipe) -> Estimate:
    """Return the estimate of a recipe on the GPUs that it names.

    Raises:
        UsageError: There are no rates for its GPU.
    """
    rates = rates_of(recipe.gpu)
    step = step_time(shape, recipe, rates)
    tokens = tokens_per_s(recipe, step)
    tflops = tokens * shape.flops_per_token(recipe.batch.length) / 1e12
    return Estimate(recipe, memory(shape, recipe), rates.memory_gib, step, tokens, tflops, tflops / rates.bf16, rates)
