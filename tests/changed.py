"""The files that differ from the main branch, and the tests that they concern."""

from __future__ import annotations

import re
import subprocess
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.areas import ALWAYS, area_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parent.parent
_TEST = re.compile(r"tests/.*/test_[^/]*\.py")
_IMPORT = re.compile(r"^ *(?:from|import) (tests[.\w]*)(?: import ([\w, ]+))?", re.MULTILINE)


def changed_files() -> tuple[str, ...] | None:
    """Return the changed and new files as paths from the root; None if there is no commit to compare with."""
    done = subprocess.run([str(ROOT / "tools/changed.sh")], capture_output=True, text=True, check=False, timeout=60)
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else None


@cache
def _pattern(paths: tuple[str, ...]) -> re.Pattern[str]:
    wanted = [path.rstrip("/") for path in (*paths, *ALWAYS)]
    return re.compile("|".join(translate(one) for path in wanted for one in (path, f"{path}/*")))


def concerns(changed: Iterable[str], paths: Sequence[str]) -> bool:
    """Return whether a changed file is one of these paths (`*` matches any text), lies below one, or concerns every test."""
    return any(map(_pattern(tuple(paths)).match, changed))


@cache
def _imports(file: str) -> frozenset[str]:
    """Return the modules of `tests` that a file imports."""
    found = _IMPORT.findall((ROOT / file).read_text(encoding="utf-8"))
    modules = [name for module, names in found for name in (module, *(f"{module}.{one.strip()}" for one in names.split(",")))]
    return frozenset(path for name in modules if (ROOT / (path := name.replace(".", "/") + ".py")).is_file())


@cache
def modules_of(test: str) -> frozenset[str]:
    """Return a test file, the fixtures of its folder, and the modules of `tests` that these import, directly or not."""
    found: set[str] = set()
    remaining = {test, *(str(file.relative_to(ROOT)) for file in (ROOT / test).parent.glob("*_fixture.py"))}
    while remaining:
        found |= remaining
        remaining = {module for file in remaining for module in _imports(file)} - found
    return frozenset(found)


def is_affected(test: str, changed: Iterable[str]) -> bool:
    """Return whether a change can affect a file with an area. Other test files can do so only if it imports them."""
    own, pattern = modules_of(test), _pattern(area_of(test))
    return any(file in own or (pattern.match(file) and not _TEST.fullmatch(file)) for file in changed)


def files_with_area() -> list[str]:
    """Return the test files that have an area, as paths from the root."""
    files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests").glob("*/test_*.py"))]
    return [file for file in files if area_of(file)]


def unaffected_files(files: Iterable[str], changed: Sequence[str] | None) -> list[str]:
    """Return the files with an area that the changes do not affect; none if the changes are unknown."""
    return [] if changed is None else [file for file in files if not is_affected(file, changed)]
