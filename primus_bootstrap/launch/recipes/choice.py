"""Choose the recipe of a model for the available GPUs, and scale it to their number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.detect.gpus import catalogue as gpu_catalogue
from primus_bootstrap.launch.recipes.recipe import DERIVED, OUT_OF_MEMORY, PUBLISHED, Recipe
from primus_bootstrap.launch.recipes.recipe_files import recipe_name
from primus_bootstrap.launch.recipes.validity import PRECISIONS, model_ranks, problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from primus_bootstrap.launch.recipes.model_shape import ModelShape

BACKENDS = ("megatron", "torchtitan", "maxtext", "native")  # of equally good recipes, the first backend's is chosen
_EVIDENCE = (OUT_OF_MEMORY, PUBLISHED, DERIVED)


@dataclass(frozen=True)
class Wanted:
    """What a recipe is chosen for. An empty text or 0 means any."""

    backend: str = ""
    gpu: str = ""
    gpus: int = 0
    precision: str = "bf16"


def choose(recipes: Sequence[Recipe], shape: ModelShape, wanted: Wanted) -> Recipe:
    """Return the best of a model's recipes, for the wanted GPU and number of GPUs.

    Raises:
        UsageError: The backend, GPU or precision is unknown.
        PlanError: None can be used.
    """
    _check_names(wanted)
    candidates = [item for item in recipes if wanted.backend in ("", item.backend) and item.precision == wanted.precision]
    usable = [item for item in candidates if not wanted.gpu or _gpu_distance(item.gpu, wanted.gpu) is not None]
    scaled = [(item, scale(item, shape, wanted.gpu or item.gpu, wanted.gpus or item.layout.gpus)) for item in usable]
    possible = [(item, result) for item, result in scaled if result and not problems(result, shape)]
    if not possible:
        raise PlanError(f"no recipe of {shape.name} for {_text(wanted)}", fix=_fix(recipes, usable))
    return min(possible, key=lambda pair: _rank(pair[0], wanted))[1]


def _check_names(wanted: Wanted) -> None:
    gpus = gpu_catalogue()["models"]
    names = (("backend", wanted.backend, BACKENDS), ("GPU", wanted.gpu, gpus), ("precision", wanted.precision, PRECISIONS))
    for kind, word, known in names:
        if word and word not in known:
            raise UsageError(f"unknown {kind} {word}", fix=did_you_mean(word, known))
    if wanted.gpus < 0:
        raise UsageError(f"{wanted.gpus} GPUs", fix="give a number of GPUs from 1")


def _gpu_distance(made_for: str, available: str) -> tuple[int, int] | None:
    """Return how far a GPU is from the available one, smaller is nearer; None if a recipe for it may need more memory than there is."""
    if made_for == available:
        return 0, 0
    facts = gpu_catalogue()["models"]
    there, here = facts[made_for].get("memory_gib"), facts[available].get("memory_gib")
    if there is None or here is None or there > here:
        return None
    return 1 if facts[made_for]["vendor"] == facts[available]["vendor"] else 2, here - there


def _rank(item: Recipe, wanted: Wanted) -> tuple[object, ...]:
    """Return the order of a recipe: the nearest GPU, the nearest number of GPUs (fewer is safer than more), the best evidence.

    Of equal recipes, the first in the file is chosen.
    """
    distance = (_gpu_distance(item.gpu, wanted.gpu) if wanted.gpu else None) or (0, 0)
    ours, asked = item.layout.gpus, wanted.gpus or item.layout.gpus
    return *distance, ours > asked, abs(ours - asked), _EVIDENCE.index(item.evidence), BACKENDS.index(item.backend)


def scale(item: Recipe, shape: ModelShape, gpu: str, gpus: int) -> Recipe | None:
    """Return the recipe for another GPU or number of GPUs; None if the number does not suit its layout.

    Only data parallelism changes. The global batch stays if the new number divides it; otherwise it becomes the next multiple.
    """
    if gpu == item.gpu and gpus == item.layout.gpus:
        return item
    if gpus % model_ranks(item):
        return None
    layout = replace(item.layout, gpus=gpus)
    layout = replace(layout, shards=min(layout.shards, gpus))
    step = item.batch.micro * layout.replicas * (layout.pipeline if layout.virtual_pipeline > 1 else 1)
    batch = replace(item.batch, all=-(-item.batch.all // step) * step)
    notes = [f"Taken from {item.name}."]
    if gpus != item.layout.gpus:
        notes.append(f"Scaled from {item.layout.gpus} to {gpus} GPUs by the data-parallel size.")
    if batch.all != item.batch.all:
        notes.append(f"The global batch is {batch.all} instead of {item.batch.all}, to be a multiple of {step}.")
    name = recipe_name(shape.name, item.backend, gpu, item.precision, gpus)
    why = " ".join([*notes, item.why])
    return replace(item, name=name, gpu=gpu, layout=layout, batch=batch, evidence=DERIVED, why=why)


def _text(wanted: Wanted) -> str:
    parts = [str(wanted.gpus) if wanted.gpus else "", wanted.gpu or "GPUs", f"with {wanted.backend}" if wanted.backend else ""]
    return " ".join([*filter(None, parts), f"in {wanted.precision}"])


def _fix(recipes: Iterable[Recipe], usable: Sequence[Recipe]) -> str:
    """Return what to change: the number of GPUs if it is the only obstacle, otherwise what exists."""
    if usable:
        counts = sorted({(item.layout.gpus, model_ranks(item)) for item in usable})
        ways = "; ".join(f"{gpus}, or another multiple of {step}" for gpus, step in counts)
        return f"use another number of GPUs: {ways}"
    found = sorted({f"{item.backend} on {item.gpu} in {item.precision}" for item in recipes})
    return f"choose one that exists: {', '.join(found) if found else 'none'}; primus-cli recipe list prints all of them"
