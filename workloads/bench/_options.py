"""Options of the measuring programs: a frozen dataclass becomes a command line."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Sequence

Options = TypeVar("Options")

# What most programs have; the default stands with each.
DEVICE: dict[str, Any] = {"help": "auto, cpu or cuda (ROCm as well)", "choices": ("auto", "cpu", "cuda")}
WARM_UP: dict[str, Any] = {"help": "operations before the clock starts"}
REPEATS: dict[str, Any] = {"help": "samples of each series, 1 to 200"}
TIMEOUT_S: dict[str, Any] = {"help": "longest that the whole program may take (s)"}


def parse_options(kind: type[Options], meaning: str, argv: Sequence[str]) -> Options:
    """Return the options that the words give; a field's metadata has its help and unit, a tuple takes words between commas."""
    parser = argparse.ArgumentParser(description=meaning, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    types = get_type_hints(kind)
    for field in fields(kind):  # type: ignore[arg-type]
        default = None if field.default is MISSING else field.default
        wanted = types[field.name]
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_words if get_origin(wanted) is tuple else wanted,
            default=default,
            choices=field.metadata.get("choices"),
            help=field.metadata["help"],
        )
    options = kind(**vars(parser.parse_args(argv)))
    for name, least, most in (("repeats", 1, 200), ("warm_up", 0, 10_000), ("timeout_s", 1, 10**6)):
        if not least <= getattr(options, name, least) <= most:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; give {least} to {most}")
    return options


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)
