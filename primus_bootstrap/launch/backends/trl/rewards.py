"""Check the reward functions of a run: built-in ones, and functions in files of the user, whose source is read and not imported."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BUILT_IN = ("exact_match", "format", "length:N")  # workloads/backends/trl/rewards.py
_LENGTH = "length"


def check(names: Iterable[str], find: Callable[[Path], Path | None]) -> None:
    """Check each reward; a file that is only on the hosts is not checked.

    Raises:
        UsageError: There is no such reward, file or function.
    """
    for name in names:
        if ".py:" in name:
            _check_function(name, find)
        else:
            _check_built_in(name)


def _check_built_in(name: str) -> None:
    kind, _, number = name.partition(":")
    if kind == _LENGTH:
        if not number.isdecimal() or not int(number):
            raise UsageError(f"rewards: {name}: no number of characters", fix="write length:N, for example length:200")
    elif name not in BUILT_IN:
        raise UsageError(f"rewards: {name}: no such reward", fix=f"{did_you_mean(name, BUILT_IN)}, or name a function as FILE.py:FUNCTION")


def _check_function(name: str, find: Callable[[Path], Path | None]) -> None:
    file, _, function = name.rpartition(":")
    path = find(Path(file))
    if path is None:
        return
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"rewards: {file}: cannot be read as Python: {error}", fix="correct the path or the file") from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function not in functions:
        fix = did_you_mean(function, functions) if functions else f"define {function}(completions, **columns) in it"
        raise UsageError(f"rewards: {file} has no function {function}", fix=fix)
