"""The benchmarks in workloads/bench: list them, print their options, and check a command line before anything is started."""

from __future__ import annotations

import argparse
import ast
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.option_parser import OptionParser
from primus_bootstrap.launch.programs import primus_words
from primus_bootstrap.launch.programs.declarations import Module, UnreadableError
from primus_bootstrap.launch.self_exec import programs_in, read_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from primus_bootstrap.launch.programs.declarations import Field

_TYPES = {"int": int, "float": float, "str": str}


def own_arguments(workloads: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments in the words of this project, checked. Words of AMD Primus are converted.

    Raises:
        UsageError: There is no such benchmark, or an option is unknown or has a wrong value.
    """
    name, *options = primus_words.own_words(arguments) if arguments else ("",)
    known = programs_in(workloads, "bench")
    if name not in known:
        fix = did_you_mean(name, known) if name else f"choose from: {', '.join(known)}"
        raise UsageError(f"no such benchmark: {name or '(none given)'}", fix=fix)
    parser = _parser(workloads, name)
    if parser is not None:
        given = parser.parse(options)
        for larger, smaller in _ordered(workloads, name):
            if 0 < (getattr(given, larger) or 0) < (getattr(given, smaller) or 0):
                most, least = (f"--{option.replace('_', '-')}" for option in (larger, smaller))
                raise UsageError(f"benchmark {name}: {most} is less than {least}", fix=f"raise {most}, or set it to 0")
    return (name, *options)


def listing(workloads: Path) -> str:
    """Return one line per benchmark: its name and what it measures."""
    return "".join(f"{name:18} {_summary(workloads, name)}\n" for name in programs_in(workloads, "bench"))


def help_text(workloads: Path, arguments: Sequence[str]) -> str:
    """Return the options of the benchmark in the first argument, or the list of benchmarks.

    Raises:
        UsageError: There is no such benchmark.
    """
    name = next((word for word in arguments if not word.startswith("-")), "")
    if not name:
        return f"{_USAGE}\n\n{listing(workloads)}\n{_MORE}\n"
    (own, *_) = own_arguments(workloads, [primus_words.benchmark_of(name)])
    parser = _parser(workloads, own)
    text = parser.format_help() if parser else f"{_summary(workloads, own)}\n"
    return text + primus_words.help_text(name)


_USAGE = "primus-cli RUNTIME -- benchmark NAME [options of that benchmark]"
_MORE = "primus-cli direct -- benchmark NAME --help prints the options of one benchmark."


def _summary(workloads: Path, name: str) -> str:
    try:
        return _module(workloads, name).summary
    except UnreadableError:
        return ""


def _module(workloads: Path, name: str) -> Module:
    return Module(lambda path: read_program(workloads, path), f"bench/{name}.py")


def _parser(workloads: Path, name: str) -> OptionParser | None:
    """Return a parser of a benchmark's options; None for a benchmark that declares its options in another way."""
    try:
        module = _module(workloads, name)
        meaning, options = _declared(module)
        parser = OptionParser(f"primus-cli direct -- benchmark {name}", meaning, absent=primus_words.absent(name))
        for field in module.fields(options):
            _add(parser, field)
    except UnreadableError:
        return None
    return parser


def _declared(module: Module) -> tuple[str, str]:
    """Return the description and the class of the options in `BENCHMARK = Benchmark(name, description, class, function)`."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == "BENCHMARK":
            _, meaning, options, *_ = node.value.args
            return str(module.value(meaning)), ast.unparse(options)
    raise UnreadableError("no BENCHMARK")


def _add(parser: OptionParser, field: Field) -> None:
    kind, metadata = ast.unparse(field.kind), field.keywords["metadata"]
    parser.add_argument(
        f"--{field.name.replace('_', '-')}",
        type=_Words(metadata["words"]) if "words" in metadata else _in_range(kind, metadata.get("range")),
        choices=metadata.get("choices"),
        metavar=None if "choices" in metadata else field.name.upper(),
        help=f"{metadata['help']} (default: {_default(field.keywords['default'])})",
    )


def _ordered(workloads: Path, name: str) -> list[tuple[str, str]]:
    """Return the pairs of options of which the first must not be less than the second; 0 is automatic."""
    module = _module(workloads, name)
    options = _declared(module)[1]
    declared = [(field.name, field.keywords["metadata"].get("not_below")) for field in module.fields(options)]
    return [(larger, smaller) for larger, smaller in declared if smaller]


def _in_range(kind: str, limits: tuple[float, float] | None) -> Callable[[str], Any]:
    """Return the function that reads a value; argparse names it in its message about a value of the wrong type."""
    convert = _TYPES.get(kind, str)
    if limits is None:
        return convert

    def number(text: str) -> Any:
        value = convert(text)
        if not limits[0] <= value <= limits[1]:
            raise argparse.ArgumentTypeError(f"{text} is not from {limits[0]} to {limits[1]}")
        return value

    return number


def _default(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value) or "empty"


class _Words:
    """Reads a comma-separated list of words, each one of the choices."""

    def __init__(self, choices: Sequence[str]) -> None:
        self._choices = choices

    def __call__(self, text: str) -> str:
        unknown = [word for word in text.split(",") if word and word not in self._choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"no such value: {unknown[0]} (choose from {', '.join(self._choices)})")
        return text
