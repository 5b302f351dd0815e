"""Parse the options of the benchmarks: the fields of a frozen dataclass are the options of the command line."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Sequence

Options = TypeVar("Options")

# Options of most benchmarks. Each benchmark sets the default.
DEVICE: dict[str, Any] = {"help": "auto, cpu or cuda (ROCm as well)", "choices": ("auto", "cpu", "cuda")}
WARM_UP: dict[str, Any] = {"help": "operations before the first sample", "range": (0, 10_000)}
REPEATS: dict[str, Any] = {"help": "samples per series, 1 to 200", "range": (1, 200)}
TIMEOUT_S: dict[str, Any] = {"help": "time limit of the benchmark (s)", "range": (1, 1_000_000)}


def parse_options(kind: type[Options], meaning: str, argv: Sequence[str]) -> Options:
    """Parse a command line. The help is in a field's metadata; a tuple is parsed from a comma-separated list.

    primus-cli reads these declarations from the source, and checks options, types, `choices`, `range`, the `words` of a list, and
    `not_below` (another option; 0 means automatic) before a start.
    """
    parser = argparse.ArgumentParser(description=meaning, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    types = get_type_hints(kind)
    for field in fields(kind):  # type: ignore[arg-type]
        default = None if field.default is MISSING else field.default
        option_type = types[field.name]
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_words if get_origin(option_type) is tuple else option_type,
            default=default,
            choices=field.metadata.get("choices"),
            help=field.metadata["help"],
        )
    options = kind(**vars(parser.parse_args(argv)))
    for field in fields(kind):  # type: ignore[arg-type]
        if "range" in field.metadata and not field.metadata["range"][0] <= getattr(options, field.name) <= field.metadata["range"][1]:
            least, most = field.metadata["range"]
            parser.error(f"--{field.name.replace('_', '-')} is {getattr(options, field.name)}; give {least} to {most}")
        lower = field.metadata.get("not_below")
        if lower and 0 < getattr(options, field.name) < getattr(options, lower):
            parser.error(f"--{field.name.replace('_', '-')} is less than --{lower.replace('_', '-')}")
    return options


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)
