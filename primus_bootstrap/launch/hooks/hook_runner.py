"""The program `run-hook`: run one Python hook or patch.

If the file has a function `hook(plan)`, it is called with the plan as plain data and returns its changes, `{"env": {...}, "extra": {...}}`
or None. They are printed as `env.NAME=VALUE` and `extra.a.b=VALUE` lines. Any other file is run as a script and prints such lines itself.
"""

from __future__ import annotations

import ast
import json
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FUNCTION = "hook"
_KINDS = ("env", "extra")


def main(arguments: Sequence[str]) -> int:
    """Run the file in the first argument with the other arguments; return the exit code."""
    path, *rest = arguments
    sys.argv = [path, *rest]
    sys.path.insert(0, str(Path(path).resolve().parent))
    tree = ast.parse(Path(path).read_bytes(), path)
    if not any(isinstance(node, ast.FunctionDef) and node.name == _FUNCTION for node in tree.body):
        runpy.run_path(path, run_name="__main__")
        return 0
    function = runpy.run_path(path, run_name="primus_hook")[_FUNCTION]
    plan = json.loads(Path(os.environ["PRIMUS_PLAN"]).read_text("utf-8"))
    changes: Mapping[str, Mapping[str, Any]] = function(plan) or {}
    unknown = set(changes) - set(_KINDS)
    if unknown:
        sys.stderr.write(f"{path}: hook() returned unknown keys: {', '.join(sorted(unknown))}\n  fix: return only the keys env and extra\n")
        return 1
    for kind in _KINDS:
        for name, value in changes.get(kind, {}).items():
            if "\n" in f"{name}{value}":
                sys.stderr.write(
                    f"{path}: hook() returned {kind}.{name} with a line break\n  fix: return one line, and write longer text to a file\n"
                )
                return 1
            sys.stdout.write(f"{kind}.{name}={value}\n")
    return 0
