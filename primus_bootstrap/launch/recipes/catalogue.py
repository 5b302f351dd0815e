"""The models and recipes that are shipped, and the choice of a recipe for a number of GPUs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.recipes import choice
from primus_bootstrap.launch.recipes.recipe_files import load_models, load_recipes, yaml_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe


@cache
def models() -> Mapping[str, ModelShape]:
    """Return the shape of every model, by name."""
    return load_models()


def model(name: str) -> ModelShape:
    """Return the shape of a model.

    Raises:
        UsageError: There is none of this name.
    """
    if name not in models():
        raise UsageError(f"unknown model {name}", fix=did_you_mean(name, models()))
    return models()[name]


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return every recipe."""
    return tuple(item for name in models() for item in recipes_of(name))


@cache
def recipes_of(name: str) -> tuple[Recipe, ...]:
    """Return the recipes of a model; reads one file, not all.

    Raises:
        UsageError: There is no model of this name.
    """
    return load_recipes(model(name), yaml_data(f"recipes/{name}.yml"))


def recipe(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        UsageError: There is none of this name.
    """
    found = {item.name: item for item in recipes()}
    if name not in found:
        raise UsageError(f"unknown recipe {name}", fix=f"{did_you_mean(name, found)}; primus-cli recipe list prints all of them")
    return found[name]


def choose(model_name: str, *, backend: str = "", gpu: str = "", gpus: int = 0, precision: str = "bf16") -> Recipe:
    """Return the recipe of a model for the available GPUs.

    A recipe of the same GPU comes first, then one of the same vendor with as much memory or less, then one of the other vendor. A recipe
    for another number of GPUs is scaled over data parallelism. The name of the result tells whether it is a shipped one: recipes() has it.

    Args:
        model_name: The model.
        backend: Empty: any.
        gpu: The model of the GPU; empty: any.
        gpus: How many there are; 0: as many as the recipe is for.
        precision: bf16, fp8 or mxfp8.

    Raises:
        UsageError: A name is unknown.
        PlanError: No recipe can be used; the message lists those that exist.
    """
    shape = model(model_name)
    return choice.choose(recipes_of(model_name), shape, choice.Wanted(backend, gpu, gpus, precision))
