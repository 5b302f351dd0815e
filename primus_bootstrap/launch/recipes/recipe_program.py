"""The verb `recipe`: list recipes, show one, and explain its choices.

    primus-cli recipe list [--model NAME] [--backend NAME] [--gpu MODEL] [--precision NAME] [--json]
    primus-cli recipe show NAME [--backend NAME] [--gpu MODEL] [--gpus N] [--precision NAME] [--json]
    primus-cli recipe explain NAME [the same options]

NAME is a recipe, or a model, whose recipe the options choose. Exit codes: 0 success, 2 an unknown name, 3 no recipe for these options.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.detect.gpus import catalogue as gpu_catalogue
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.recipes.choice import BACKENDS
from primus_bootstrap.launch.recipes.explanation import evidence, explain
from primus_bootstrap.launch.recipes.validity import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.recipes.recipe import Recipe

_WIDTH = 110


def main(words: Sequence[str]) -> int:
    """Run the verb; return the exit code.

    Raises:
        PrimusError: A name is unknown, or no recipe suits the options.
    """
    options = _parser().parse_args(words)
    if options.verb == "list":
        found = _matching(options)
        sys.stdout.write(_listed(found, as_json=options.json))
        if not found:
            sys.stderr.write("primus-cli: no recipe matches; `primus-cli recipe list` prints all\n")
        return 0
    recipe = _named(options)
    sys.stdout.write(_shown(recipe, as_json=options.json) if options.verb == "show" else _explained(recipe, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="primus-cli recipe", description="List, show and explain how models are trained.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|show|explain")
    about = {
        "list": "print the recipes, one per line",
        "show": "print every setting of a recipe, with its source",
        "explain": "print what each choice of a recipe means, why it was made, and what it is based on",
    }
    for verb, text in about.items():
        sub = verbs.add_parser(verb, help=text, description=text[0].upper() + text[1:] + ".")
        if verb == "list":
            sub.add_argument("--model", default="", metavar="NAME", help="only of this model")
        else:
            sub.add_argument("name", metavar="NAME", help="a recipe, or a model: the options then choose its recipe")
            sub.add_argument(
                "--gpus", type=int, default=0, metavar="N", help="how many GPUs there are; default: as many as the recipe is for"
            )
        sub.add_argument("--backend", default="", metavar="NAME", help=f"one of {', '.join(BACKENDS)}; default: any")
        sub.add_argument("--gpu", default="", metavar="MODEL", help="model of the GPU, such as MI300X or H100; default: any")
        default = "any" if verb == "list" else "bf16"
        sub.add_argument("--precision", default="", metavar="NAME", help=f"one of {', '.join(PRECISIONS)}; default: {default}")
        sub.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _matching(options: argparse.Namespace) -> tuple[Recipe, ...]:
    """Return the recipes that the options leave.

    Raises:
        UsageError: A name is unknown.
    """
    known = {"model": catalogue.models(), "backend": BACKENDS, "gpu": gpu_catalogue()["models"], "precision": PRECISIONS}
    wanted = {name: getattr(options, name) for name in known if getattr(options, name)}
    for name, word in wanted.items():
        if word not in known[name]:
            raise UsageError(f"--{name} {word}: unknown", fix=did_you_mean(word, known[name]))
    return tuple(item for item in catalogue.recipes() if all(getattr(item, name) == word for name, word in wanted.items()))


def _named(options: argparse.Namespace) -> Recipe:
    """Return the recipe with the name, or that of the model with the name.

    Raises:
        PrimusError: There is none.
    """
    choice = {"backend": options.backend, "gpu": options.gpu, "gpus": options.gpus, "precision": options.precision}
    if options.name in catalogue.models():
        return catalogue.choose(options.name, **{name: value for name, value in choice.items() if value})
    if options.name not in {item.name for item in catalogue.recipes()}:
        near = did_you_mean(options.name, [*catalogue.models(), *(item.name for item in catalogue.recipes())])
        raise UsageError(f"no recipe or model {options.name}", fix=near if near.startswith("did") else "primus-cli recipe list")
    recipe = catalogue.recipe(options.name)
    given = [f"--{name}" for name, value in choice.items() if value]
    if given:
        what = f"{', '.join(given)}: {options.name} is a recipe, and these options choose the recipe of a model"
        raise UsageError(what, fix=f"primus-cli recipe {options.verb} {recipe.model} {given[0]} {choice[given[0][2:]]}")
    return recipe


def _listed(recipes: Sequence[Recipe], *, as_json: bool) -> str:
    if as_json:
        return json.dumps([_document(item) for item in recipes], indent=2) + "\n"
    rows = [("RECIPE", "LAYOUT", "BATCH", "RECOMPUTE", "EVIDENCE")]
    rows += [(item.name, item.layout.text, _batch(item), _recompute(item), item.evidence) for item in recipes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]  # noqa: B905 - Python 3.9
    return "\n".join(lines) + "\n"


def _batch(item: Recipe) -> str:
    return f"{item.batch.all} x {item.batch.length}, micro {item.batch.micro}"


def _recompute(item: Recipe) -> str:
    return f"{item.recompute.kind} {item.recompute.layers}" if item.recompute.layers else item.recompute.kind


def _document(item: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data."""
    return {**asdict(item), "keys": dict(item.keys)}


def _shown(item: Recipe, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(_document(item), indent=2) + "\n"
    return str(yaml.safe_dump(_document(item), sort_keys=False, allow_unicode=True, width=_WIDTH))


def _explained(item: Recipe, *, as_json: bool) -> str:
    choices = explain(item, catalogue.model(item.model))
    if as_json:
        based = {"why": item.why, "source": item.source, "evidence": item.evidence, "evidence_meaning": evidence(item)}
        return json.dumps({"recipe": item.name, "choices": [asdict(choice) for choice in choices], **based}, indent=2) + "\n"
    lines = [f"{item.name}: {item.model} with {item.backend} on {item.layout.gpus} x {item.gpu}", ""]
    lines += [_paragraph(f"{choice.name}: {choice.value}", choice.meaning) for choice in choices]
    lines += [_paragraph(f"{item.backend}.{name}: {json.dumps(value)}", "") for name, value in item.keys.items()]
    lines += ["", _paragraph("why", item.why), _paragraph("based on", item.source)]
    lines += [_paragraph(f"evidence: {item.evidence}", evidence(item))]
    return "\n".join(lines) + "\n"


def _paragraph(head: str, text: str) -> str:
    if not text:
        return head
    lines = textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    return "\n".join([head, *lines])
