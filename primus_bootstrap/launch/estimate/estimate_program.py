"""The verb `estimate`: memory, verdict and speed of a recipe on an allocation.

    primus-cli estimate RECIPE|MODEL [--gpus N] [--gpu MODEL] [--backend NAME] [--search] [--json]

Exit codes: 0 it fits (too close is a warning), 2 a word is wrong, 3 it does not fit or no recipe exists.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.launch.estimate.search import search, smallest_allocation
from primus_bootstrap.launch.estimate.verdict import DOES_NOT_FIT, MARGIN, TOO_CLOSE, Estimate, estimate
from primus_bootstrap.launch.option_parser import OptionParser
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.validity import problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.estimate.memory import StageMemory
    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe


def main(words: Sequence[str]) -> int:
    """Print the estimate; return the exit code.

    Raises:
        PrimusError: A name is unknown, or the layout is not possible on this number of GPUs.
    """
    options = parser().parse_args(words)
    recipe = find_recipe(options.recipe, gpu=options.gpu, gpus=options.gpus, backend=options.backend, precision=options.precision)
    shape = catalogue.model(recipe.model)
    if options.search:
        return _print_search(shape, recipe, as_json=options.json)
    found = estimate(shape, recipe)
    smallest = smallest_allocation(shape, recipe) if found.verdict == DOES_NOT_FIT else None
    if options.json:
        document = found.to_json()
        if smallest is not None:
            document["smallest_allocation"] = smallest.to_json()
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write(text(found))
        sys.stderr.write(advice(found, smallest))
    return PlanError.exit_code if found.verdict == DOES_NOT_FIT else 0


# The columns of a stage.
_COLUMNS = ("7.1f", "11.1f", "11.1f", "13.1f", "11.1f", "7.1f", "9.1f")


def parser() -> OptionParser:
    """Return the options of the verb."""
    found = OptionParser("primus-cli estimate", "Estimate memory and speed of a recipe on an allocation. Exits with 3 if it does not fit.")
    found.add_argument("recipe", metavar="RECIPE|MODEL", help="a name of `primus-cli recipe list`, or a model such as llama-3.1-70b")
    found.add_argument("--gpus", type=int, default=0, metavar="N", help="number of GPUs; default: that of the recipe")
    found.add_argument("--gpu", default="", metavar="MODEL", help="model of the GPU, such as MI300X; default: that of the recipe")
    found.add_argument("--backend", default="", metavar="NAME", help="for a model: megatron, torchtitan, maxtext or native; default: any")
    found.add_argument("--precision", default="bf16", metavar="KIND", help="for a model: bf16, fp8 or mxfp8; default: bf16")
    found.add_argument("--search", action="store_true", help="propose the fastest layouts that fit this allocation")
    found.add_argument("--json", action="store_true", help="print one JSON object")
    return found


def find_recipe(name: str, *, gpu: str = "", gpus: int = 0, backend: str = "", precision: str = "bf16") -> Recipe:
    """Return a recipe by its name, or the one of a model; on the GPU and number of GPUs that are given.

    Raises:
        UsageError: A name is unknown.
        PlanError: The recipe cannot be used on this number of GPUs.
    """
    if name in catalogue.models():
        try:
            return catalogue.choose(name, backend=backend, gpu=gpu, gpus=gpus, precision=precision)
        except PlanError:
            # A layout that is too large for the allocation is estimated all the same, to say what would fit.
            recipe = catalogue.choose(name, backend=backend, gpu=gpu, precision=precision)
    else:
        names = {item.name for item in catalogue.recipes()}
        if name not in names:
            near = nearest(name, [*catalogue.models(), *names])
            fix = f"did you mean {near}?" if near else "`primus-cli recipe list` prints all recipes and their models"
            raise UsageError(f"unknown recipe or model {name}", fix=fix)
        recipe = catalogue.recipe(name)
    return _moved(recipe, gpu or recipe.gpu, gpus or recipe.layout.gpus)


def _moved(recipe: Recipe, gpu: str, gpus: int) -> Recipe:
    """Return a recipe on other GPUs. Its layout stays if the number of GPUs allows it; otherwise it loses stages."""
    layout, shape = replace(recipe.layout, gpus=gpus), catalogue.model(recipe.model)
    while max(layout.pipeline, layout.context) > 1 and gpus % (layout.tensor * layout.pipeline * layout.context):
        if layout.context > 1:
            layout = replace(layout, context=layout.context // 2)
        else:
            layout = replace(layout, pipeline=layout.pipeline // 2, virtual_pipeline=1)
    layout = replace(layout, expert=min(layout.expert, gpus))
    step = recipe.batch.micro * max(1, layout.replicas)
    batch = replace(recipe.batch, all=-(-recipe.batch.all // step) * step)
    keys = recipe.keys if layout.pipeline == recipe.layout.pipeline else _without_stages(recipe)
    moved = replace(recipe, gpu=gpu, layout=layout, batch=batch, keys=keys)
    found = problems(moved, shape)
    if found:
        raise PlanError(
            f"{recipe.name} cannot run on {gpus} {gpu}: {found[0]}", fix=f"primus-cli estimate {recipe.name} --gpus {gpus} --search"
        )
    return moved


def _without_stages(recipe: Recipe) -> dict[str, object]:
    return {name: value for name, value in recipe.keys.items() if "pipeline" not in name}


def text(found: Estimate) -> str:
    """Return the estimate as text."""
    recipe, step = found.recipe, found.step
    lines = [
        f"{recipe.name}: {recipe.layout.gpus} x {recipe.gpu}, {recipe.precision}, {recipe.backend}",
        f"layout   {recipe.layout.text}, micro batch {recipe.batch.micro}, recompute {recipe.recompute.kind}",
        f"batch    {recipe.batch.all} sequences of {recipe.batch.length} tokens",
        "",
        "GiB      weights  gradients  optimizer  activations  temporary  fixed    total",
        *map(_stage_line, found.stages),
    ]
    lines += [
        "",
        f"memory   {found.verdict}: {found.fullest.total:.1f} of {found.available_gib:.1f} GiB, {found.margin_gib:+.1f} GiB",
        f"step     {step.total:.3f} s: "
        + ", ".join(f"{name.replace('_', ' ')} {value / step.total:.0%}" for name, value in asdict(step).items()),
        f"speed    {found.tokens_per_s:,.0f} tokens/s and {found.tflops:,.0f} TFLOP/s per GPU, MFU {found.mfu:.1%} of bf16",
    ]
    return "\n".join(lines) + "\n"


def _stage_line(item: StageMemory) -> str:
    parts = (item.weights, item.gradients, item.optimizer, item.activations, item.temporary, item.fixed, item.total)
    return f"stage {item.stage:<3}" + "".join(f"{value:{form}}" for value, form in zip(parts, _COLUMNS))  # noqa: B905 - Python 3.9


def advice(found: Estimate, smallest: Estimate | None) -> str:
    """Return what to do if the recipe does not fit or is too close; an empty text otherwise."""
    recipe = found.recipe
    if found.verdict == TOO_CLOSE:
        return (
            f"primus-cli: {recipe.name} may run out of memory: less than {MARGIN:.0%} is free for fragmentation\n"
            f"  fix: more recomputation or a smaller micro batch; `{_search_command(recipe)}` proposes layouts\n"
        )
    if found.verdict != DOES_NOT_FIT:
        return ""
    if smallest is None:
        fix = f"no number of {recipe.gpu} up to 16,384 fits with this batch and sequence length; use a GPU with more memory"
    else:
        gpus = smallest.recipe.layout.gpus
        where = "with another layout" if gpus <= recipe.layout.gpus else f"on {gpus} {recipe.gpu}"
        fix = f"it fits {where}: {smallest.recipe.layout.text}; see {_search_command(recipe, gpus)}"
    return f"primus-cli: {recipe.name} does not fit on {recipe.layout.gpus} {recipe.gpu}: {-found.margin_gib:.1f} GiB short\n  fix: {fix}\n"


def _search_command(recipe: Recipe, gpus: int = 0) -> str:
    """Return the command that searches layouts on a number of GPUs; 0: that of the recipe."""
    return f"primus-cli estimate {recipe.name} --gpus {gpus or recipe.layout.gpus} --gpu {recipe.gpu} --search"


def _print_search(shape: ModelShape, recipe: Recipe, *, as_json: bool) -> int:
    found = search(shape, recipe)
    if as_json:
        document = {"examined": found.examined, "layouts": [_layout_json(item) for item in found.best]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return 0 if found.best else PlanError.exit_code
    sys.stdout.write(f"{found.examined} layouts of {shape.name} on {recipe.layout.gpus} {recipe.gpu} examined\n")
    for item in found.best:
        sys.stdout.write(
            f"  {item.tokens_per_s:>8,.0f} tokens/s per GPU  {item.fullest.total:>6.1f} of {item.available_gib:.0f} GiB ({item.verdict})  "
            f"{item.recipe.layout.text}, micro batch {item.recipe.batch.micro}, recompute {item.recipe.recompute.kind}\n"
        )
    if found.best:
        return 0
    smallest = smallest_allocation(shape, recipe)
    where = f"it fits on {smallest.recipe.layout.gpus} {recipe.gpu}" if smallest else "use a GPU with more memory"
    raise PlanError(f"no layout of {shape.name} fits on {recipe.layout.gpus} {recipe.gpu}", fix=where)


def _layout_json(item: Estimate) -> dict[str, object]:
    recipe = item.recipe
    return {**item.to_json(), "layout": asdict(recipe.layout), "micro_batch": recipe.batch.micro, "recompute": recipe.recompute.kind}
