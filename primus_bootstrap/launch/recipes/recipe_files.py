"""Read data/models.yml and data/recipes/MODEL.yml, and report every mistake in them at once.

A file of recipes is a list. An entry with several GPUs or precisions stands for one recipe of each; `{gpu}` and `{precision}` in its source
are replaced, `{PRECISION}` in capital letters. The model's name is that of the file.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml

from primus_bootstrap.core.structured import NOT_EMPTY, InvalidDataError, Issue, read, readable
from primus_bootstrap.launch.recipes.model_shape import ModelShape
from primus_bootstrap.launch.recipes.recipe import Batch, Layout, Recipe, Recompute
from primus_bootstrap.launch.recipes.validity import problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Names = Annotated[tuple[str, ...], NOT_EMPTY]
Evidence = Literal["published", "limited by a real out-of-memory", "derived"]
BackendName = Literal["native", "megatron", "torchtitan", "maxtext"]


@readable
@dataclass(frozen=True)
class Entry:
    """One entry of a file of recipes."""

    backend: BackendName
    gpu: str | Names
    layout: Layout
    batch: Batch
    source: str
    why: str
    precision: str | Names = "bf16"
    recompute: Recompute = field(default_factory=Recompute)
    keys: Mapping[str, Any] = field(default_factory=dict)
    evidence: Evidence = "derived"


def load_models() -> dict[str, ModelShape]:
    """Return the models of models.yml by name.

    Raises:
        InvalidDataError: With every mistake of the file.
    """
    issues: list[Issue] = []
    found = {name: _read(ModelShape, {**data, "name": name}, name, issues) for name, data in yaml_data("models.yml").items()}
    if issues:
        raise InvalidDataError(issues, origin="models.yml")
    return found


def load_recipes(model: ModelShape, entries: Iterable[Mapping[str, Any]]) -> tuple[Recipe, ...]:
    """Return the recipes of a model.

    Raises:
        InvalidDataError: With every mistake of the entries.
    """
    issues: list[Issue] = []
    recipes: dict[str, Recipe] = {}
    for number, data in enumerate(entries):
        where = f"[{number}]"
        entry = _read(Entry, data, where, issues)
        for recipe in _expanded(entry, model) if entry else ():
            if recipe.name in recipes:
                issues.append(Issue(where, f"there are two recipes {recipe.name}", "remove one"))
            issues += [Issue(where, f"{recipe.name}: {problem}", "correct or remove it") for problem in problems(recipe, model)]
            recipes[recipe.name] = recipe
    if issues:
        raise InvalidDataError(issues, origin=f"recipes/{model.name}.yml")
    return tuple(recipes.values())


def _read(kind: Any, data: Any, where: str, issues: list[Issue]) -> Any:
    """Return the data as a value of this type, or None after a report."""
    try:
        return read(kind, data)
    except InvalidDataError as error:
        issues += [Issue(f"{where}.{issue.path}", issue.what, issue.fix) for issue in error.issues]
        return None


def _expanded(entry: Entry, model: ModelShape) -> Iterator[Recipe]:
    gpus, precisions = ([value] if isinstance(value, str) else list(value) for value in (entry.gpu, entry.precision))
    for gpu, precision in product(gpus, precisions):
        yield Recipe(
            name=recipe_name(model.name, entry.backend, gpu, precision, entry.layout.gpus),
            model=model.name,
            backend=entry.backend,
            gpu=gpu,
            precision=precision,
            layout=entry.layout,
            batch=entry.batch,
            recompute=entry.recompute,
            keys={**model.keys.get(entry.backend, {}), **entry.keys},
            source=_source(entry.source, gpu, precision),
            evidence=entry.evidence,
            why=" ".join(entry.why.split()),
        )


def recipe_name(model: str, backend: str, gpu: str, precision: str, gpus: int) -> str:
    """Return the name of a recipe."""
    return f"{model}-{backend}-{gpu.lower()}-{precision}-{gpus}"


def _source(text: str, gpu: str, precision: str) -> str:
    """Return a source with its repository's address and the placeholders replaced."""
    prefix, colon, path = text.partition(":")
    address = yaml_data("recipe_sources.yml").get(prefix) if colon else None
    full = f"{address}{path}" if address else text
    return full.replace("{gpu}", gpu).replace("{precision}", precision).replace("{PRECISION}", precision.upper())


def yaml_data(name: str) -> Any:
    """Return the content of a file of launch/data."""
    text = pkgutil.get_data("primus_bootstrap.launch", f"data/{name}") or b""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
