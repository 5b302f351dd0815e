"""Options of the measuring programs: a frozen dataclass becomes a command line."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, TypeVar, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Sequence

Options = TypeVar("Options")


def parse_options(kind: type[Options], meaning: str, argv: Sequence[str]) -> Options:
    """Return the options that the words give; a field's metadata has its help and unit."""
    parser = argparse.ArgumentParser(description=meaning, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    types = get_type_hints(kind)
    for field in fields(kind):  # type: ignore[arg-type]
        default = None if field.default is MISSING else field.default
        choices = field.metadata.get("choices")
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=types[field.name], default=default, choices=choices, help=field.metadata["help"]
        )
    return kind(**vars(parser.parse_args(argv)))
