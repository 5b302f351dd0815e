"""Turn the settings of a training run into the recipe, the shape and the values that an adapter renders."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.backends import common_settings
from primus_bootstrap.launch.backends.contract import Run
from primus_bootstrap.launch.recipes import catalogue, choice
from primus_bootstrap.launch.recipes.model_shape import Experts, ModelShape
from primus_bootstrap.launch.recipes.recipe import FULL, Batch, Layout, Recipe, Recompute
from primus_bootstrap.launch.recipes.validity import expert_tensor, model_ranks, problems

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from primus_bootstrap.launch.backends.check import Checked
    from primus_bootstrap.launch.backends.contract import Backend

_LAYOUT = {
    "parallel.tensor": "tensor",
    "parallel.pipeline": "pipeline",
    "parallel.virtual_pipeline": "virtual_pipeline",
    "parallel.context": "context",
    "parallel.expert": "expert",
    "parallel.strategy": "data",
    "parallel.shards": "shards",
    "parallel.sequence": "sequence_parallel",
}
_BATCH = {"train.sequence_length": "length", "train.micro_batch": "micro", "train.global_batch": "all"}
_ANY_GPU = "MI355X"  # for a run whose GPU is not known: one that has every precision
_RECOMPUTE = {"compute.recompute": "kind", "compute.recompute_layers": "layers"}


@dataclass(frozen=True)
class Machine:
    """The GPUs of a run. 0 and an empty text: not known where the command is typed."""

    ranks: int = 0
    gpu: str = ""


def describe(backend: Backend, checked: Checked, workloads: Path, machine: Machine, run_dir: Path) -> Run:
    """Return the run of these settings on these GPUs.

    A recipe that the user names, or the one of the model for the GPUs, comes first; the user's settings replace its values. Without either,
    the settings themselves describe the model.

    Raises:
        UsageError: A name is unknown, or the settings contradict each other.
        PlanError: The layout does not suit the number of ranks.
    """
    known = common_settings.common_settings(workloads)
    stated = checked.stated
    settings = {**{name: item.default for name, item in known.items()}, **stated}
    gpu = settings["gpu"] or machine.gpu
    if stated.get("recipe") or stated.get("model"):
        base, shape = _shipped(backend, stated, Machine(machine.ranks, gpu))
    else:
        base, shape = _from_settings(backend, settings, Machine(machine.ranks, gpu))
    recipe = _with_user_values(base, stated, machine.ranks)
    recipe = replace(recipe, keys={**recipe.keys, **checked.keys})  # a pipeline's layout, for example, decides whether the recipe is valid
    _check(recipe, shape, machine)
    return Run(recipe, shape, {**settings, **_values(recipe)}, checked.keys, run_dir)


def _shipped(backend: Backend, stated: Mapping[str, Any], machine: Machine) -> tuple[Recipe, ModelShape]:
    shaped = sorted(name for name in stated if name.startswith("model."))
    if shaped:
        raise UsageError(f"{shaped[0]} is set, and so is {'recipe' if stated.get('recipe') else 'model'}", fix="remove one of them")
    if not stated.get("recipe"):
        name, precision = stated["model"], stated.get("compute.precision", "bf16")
        wanted = {"backend": backend.name, "precision": precision}
        found = catalogue.choose(name, gpu=machine.gpu, gpus=_whole(stated, machine.ranks), **wanted)
        return found, catalogue.model(name)
    found = catalogue.recipe(stated["recipe"])
    if found.backend != backend.name:
        fix = f"set backend={found.backend}"
        raise UsageError(f"the recipe {found.name} is for {found.backend}, and backend is {backend.name}", fix=fix)
    shape = catalogue.model(found.model)
    if machine.ranks and machine.ranks != found.layout.gpus:
        found = choice.scale(found, shape, found.gpu, machine.ranks) or found
    return found, shape


def _whole(stated: Mapping[str, Any], ranks: int) -> int:
    """Return the number of ranks for the choice of a recipe: any, if the user states a layout."""
    return 0 if any(name in stated for name in _LAYOUT) else ranks


def _from_settings(backend: Backend, settings: Mapping[str, Any], machine: Machine) -> tuple[Recipe, ModelShape]:
    shape = shape_of(settings)
    layout = Layout(gpus=machine.ranks or 1, data=backend.default_strategy)
    batch = Batch(settings["train.sequence_length"], settings["train.micro_batch"], settings["train.global_batch"])
    recompute = Recompute(settings["compute.recompute"], settings["compute.recompute_layers"])
    return Recipe("", shape.name, backend.name, machine.gpu, settings["compute.precision"], layout, batch, recompute), shape


def shape_of(settings: Mapping[str, Any]) -> ModelShape:
    """Return the shape that the settings of the native trainer describe."""
    value = {name[len("model.") :]: found for name, found in settings.items() if name.startswith("model.")}
    heads = value["heads"]
    experts = Experts(value["experts"], value["experts_per_token"], value["ffn_width"]) if value["experts"] else None
    return ModelShape(
        name="settings",
        layers=value["layers"],
        width=value["width"],
        heads=heads,
        kv_heads=value["kv_heads"],
        head_size=value["width"] // heads,
        ffn_width=value["ffn_width"],
        vocabulary=value["vocabulary"],
        experts=experts,
        rope_theta=value["rope_theta"],
        norm_eps=value["norm_eps"],
    )


def _with_user_values(base: Recipe, stated: Mapping[str, Any], ranks: int) -> Recipe:
    """Return the recipe with the values that the user states."""

    def given(names: Mapping[str, str]) -> dict[str, Any]:
        return {ours: stated[name] for name, ours in names.items() if name in stated}

    layout = replace(base.layout, **given(_LAYOUT))
    layout = replace(layout, gpus=ranks or max(layout.gpus, _fewest_ranks(replace(base, layout=layout))))
    recompute = replace(base.recompute, **given(_RECOMPUTE))
    if stated.get("compute.recompute_layers") and "compute.recompute" not in stated:
        recompute = replace(recompute, kind=FULL)  # the only kind that has a number of layers
    precision = stated.get("compute.precision", base.precision)
    return replace(base, layout=layout, batch=replace(base.batch, **given(_BATCH)), recompute=recompute, precision=precision)


def _fewest_ranks(recipe: Recipe) -> int:
    """Return the smallest number of ranks that the layout suits."""
    experts = recipe.layout.expert * recipe.layout.pipeline * expert_tensor(recipe) if recipe.layout.expert > 1 else 1
    return math.lcm(model_ranks(recipe), experts)


def _check(recipe: Recipe, shape: ModelShape, machine: Machine) -> None:
    precision = "bf16" if recipe.precision == "fp32" else recipe.precision
    found = problems(replace(recipe, precision=precision, gpu=recipe.gpu or _ANY_GPU), shape)
    if found:
        what = "\n".join(found)
        fix = "change parallel.*, train.micro_batch or train.global_batch; `primus-cli recipe list` prints layouts that fit"
        if machine.ranks:
            raise PlanError(f"{what} ({machine.ranks} ranks)", fix=fix)
        raise UsageError(what, fix=fix)


def _values(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a recipe decides, by their common names."""
    parts = ((_LAYOUT, recipe.layout), (_BATCH, recipe.batch), (_RECOMPUTE, recipe.recompute))
    values = {name: getattr(part, ours) for names, part in parts for name, ours in names.items()}
    return {**values, "compute.precision": recipe.precision}
