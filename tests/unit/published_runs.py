"""The published runs that the estimates are compared with: tests/data/estimate/published.yml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from primus_bootstrap.launch.estimate.verdict import Estimate, estimate
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.recipe import Batch, Layout, Recipe, Recompute

_FILE = Path(__file__).parents[1] / "data/estimate/published.yml"
_SIZES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert")


@dataclass(frozen=True)
class Run:
    """One published run; a speed or a peak that is not stated is None."""

    name: str
    recipe: Recipe
    tokens_per_s: float | None
    memory_gib: float | None
    unlike: str

    def estimate(self) -> Estimate:
        """Return our estimate of the run."""
        return estimate(shape_of(self.recipe.model), self.recipe)


def shape_of(model: str) -> Any:
    """Return a model's shape; the two that were measured here differ from the published models."""
    if model == "llama-3.2-1b-untied":
        return replace(catalogue.model("llama-3.2-1b"), tied=False)
    if model == "llama-3.1-8b-slice":
        return replace(catalogue.model("llama-3.1-8b"), layers=4, vocabulary=32000)
    return catalogue.model(model)


def runs() -> list[Run]:
    """Return every run."""
    return [_run(item) for item in yaml.safe_load(_FILE.read_text("utf-8"))["runs"]]


def _run(item: dict[str, Any]) -> Run:
    layout = Layout(item["gpus"], **{name: item[name] for name in _SIZES if name in item}, data=item["data"])
    recompute = Recompute(item.get("recompute", "none"), item.get("recompute_layers", 0))
    batch = Batch(item["length"], item["micro"], item["all"])
    precision, keys = item.get("precision", "bf16"), item.get("keys", {})
    recipe = Recipe(item["name"], item["model"], item["backend"], item["gpu"], precision, layout, batch, recompute, keys)
    name = f"{item['source']} {item['name']} on {item['gpus']} {item['gpu']}"
    return Run(name, recipe, item.get("tokens_per_s"), item.get("memory_gib"), item.get("unlike", ""))
