"""The program `run-plugin`: call one function of a plug-in with the arguments of its task."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Call the function in the second word, of the file in the first; return its result as the exit code (None: 0)."""
    path, function, *arguments = words
    sys.path.insert(0, str(Path(path).resolve().parent))  # modules beside the plug-in
    result = getattr(_load(path), function)(arguments)
    if result is not None and not isinstance(result, int):
        sys.stderr.write(f"{path}: {function}() returned {result!r}\n  fix: return an exit code, or nothing\n")
        return 1
    return result or 0


def _load(path: str) -> ModuleType:
    name = f"primus_plugin_{Path(path).stem}"
    loader = SourceFileLoader(name, path)
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses and pickle look their module up
    loader.exec_module(module)
    return module
