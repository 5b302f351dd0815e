"""The recipes of post-training: settings of a method for a model, with their source. They are files in data/backends/trl-recipes."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.launch.programs.settings_file import Given

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FOLDER = "data/backends/trl-recipes"
NAMES = ("grpo-qwen-2.5-1.5b", "lora-mistral-7b", "sft-mistral-7b")


@dataclass(frozen=True)
class PosttrainRecipe:
    """One recipe. `evidence` is published or derived, as in the catalogue of recipes for pre-training."""

    name: str
    model: str
    gpus: str
    source: str
    evidence: str
    why: str
    settings: Mapping[str, Any]

    def given(self) -> list[Given]:
        """Return its settings."""
        return [Given(name, value, f"recipe {self.name}") for name, value in _flat(self.settings, "")]


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def recipe(name: str) -> PosttrainRecipe:
    """Return a recipe of NAMES."""
    data = yaml.safe_load(pkgutil.get_data("primus_bootstrap.launch", f"{_FOLDER}/{name}.yml") or b"")
    return PosttrainRecipe(name, **data)
