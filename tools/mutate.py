#!/usr/bin/env python3
"""Mutation check: break random places of the code one at a time, and report which of them the tests notice.

    tools/mutate.py [--count 20] [--seed N] [--least 18] [--tests "tests/unit tests/contract tests/golden"] [--then tests/integration]

It works in a clone of the committed tree. A place is one operator, condition or small number of the package; durations and the
decorators of classes are not changed. The unit and contract tests that import the module run first, then the integration tests that
import it, then `--tests`, then `--then`; each run stops at its first failure. `--place FILE:LINE` breaks the places on that line
instead. Exits with 1 if fewer places than `--least` were noticed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 1800
# Only small numbers are changed. Larger ones are mostly limits and widths, where one more makes no difference.
_LARGEST = 2
_WAITS = re.compile(r"timeout|_s\b|_S\b|every|sleep", re.IGNORECASE)
_COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">="),
    ast.Gt: (">", "<="),
    ast.LtE: ("<=", ">"),
    ast.GtE: (">=", "<"),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
}


class Place(NamedTuple):
    """One change of one line. `start` and `end` are byte offsets in the line."""

    file: str
    line: int
    start: int
    end: int
    new: str
    old: str


def _nodes(tree: ast.AST) -> Iterable[ast.AST]:
    """Return the nodes of a module without the decorators of its classes: `frozen` and `slots` change no result of correct code."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    decoration = {part for node in classes for decorator in node.decorator_list for part in ast.walk(decorator)}
    return (node for node in ast.walk(tree) if node not in decoration)


def places_of(file: str, text: str) -> list[Place]:
    """Return all places of a module that can be broken."""
    lines = text.splitlines()
    found = []
    for node in _nodes(ast.parse(text)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            old, new = _COMPARE[type(node.ops[0])]
            left, right = node.left, node.comparators[0]
            if left.end_lineno == right.lineno and left.end_col_offset is not None:
                between = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
                if old.strip() in between:
                    changed = between.replace(old.strip(), new.strip(), 1)
                    found.append(Place(file, right.lineno, left.end_col_offset, right.col_offset, changed, between))
        elif isinstance(node, ast.BoolOp) and node.values[0].end_lineno == node.values[1].lineno:
            start, end = node.values[0].end_col_offset or 0, node.values[1].col_offset
            between = lines[node.values[1].lineno - 1].encode()[start:end].decode()
            words = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
            if words[0] in between:
                found.append(Place(file, node.values[1].lineno, start, end, between.replace(*words, 1), between))
        elif isinstance(node, ast.Constant) and node.end_col_offset is not None and node.lineno == node.end_lineno:
            if isinstance(node.value, bool):
                found.append(Place(file, node.lineno, node.col_offset, node.end_col_offset, str(not node.value), str(node.value)))
            elif isinstance(node.value, int) and node.value <= _LARGEST and not _WAITS.search(lines[node.lineno - 1]):
                found.append(Place(file, node.lineno, node.col_offset, node.end_col_offset, str(node.value + 1), str(node.value)))
    return found


def broken(text: str, place: Place) -> str:
    """Return a module with one place broken."""
    lines = text.splitlines(keepends=True)
    line = lines[place.line - 1].encode()
    lines[place.line - 1] = (line[: place.start] + place.new.encode() + line[place.end :]).decode()
    return "".join(lines)


def choose(root: Path, count: int, seed: int) -> list[Place]:
    """Return random places of the package, at most one per module."""
    random_of = random.Random(seed)  # noqa: S311 - not used for secrets
    modules = sorted(path for path in (root / "primus_bootstrap").rglob("*.py"))
    random_of.shuffle(modules)
    chosen: list[Place] = []
    for path in modules:
        found = places_of(str(path.relative_to(root)), path.read_text("utf-8"))
        if found and len(chosen) < count:
            chosen.append(random_of.choice(found))
    return chosen


def places_on(root: Path, given: str) -> list[Place]:
    """Return the places of one line, FILE:LINE."""
    file, _, line = given.rpartition(":")
    return [place for place in places_of(file, (root / file).read_text("utf-8")) if place.line == int(line)]


def fails(copy: Path, tests: list[str]) -> bool:
    """Run the tests in the copy; return whether one failed or they timed out."""
    try:
        command = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def tests_that_name(copy: Path, module: str, *tiers: str) -> list[str]:
    """Return the test files of some tiers that import a module."""
    dotted = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    named = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    files = [path for tier in tiers for path in (copy / "tests" / tier).glob("test_*.py")]
    return sorted(str(path.relative_to(copy)) for path in files if named.search(path.read_text("utf-8")))


def is_noticed(copy: Path, place: Place, runs: Iterable[list[str]]) -> bool:
    """Break a place in the copy, run the tests, and restore it; return whether a test failed."""
    path = copy / place.file
    text = path.read_text("utf-8")
    path.write_text(broken(text, place), "utf-8")
    try:
        return any(fails(copy, tests) for tests in runs if tests)
    finally:
        path.write_text(text, "utf-8")


def main() -> int:
    """Run the mutation check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20, help="number of places (default: 20)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the random choice")
    parser.add_argument("--place", action="append", default=[], metavar="FILE:LINE", help="break this line; repeatable")
    parser.add_argument("--least", type=int, default=18, help="required number of noticed places (default: 18)")
    parser.add_argument("--tests", default="tests/unit tests/contract tests/golden", help="folders and options for pytest")
    parser.add_argument("--then", default="tests/integration", help="tests for places that the others do not notice; may be empty")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="primus-mutate-") as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True, timeout=600)
        if fails(copy, options.tests.split()):
            print(f"mutate.py: the tests fail in an unchanged clone\n  fix: run pytest {options.tests}", file=sys.stderr)
            return 1
        chosen = [place for given in options.place for place in places_on(copy, given)] or choose(copy, options.count, options.seed)
        noticed = 0
        for place in chosen:
            started = time.monotonic()
            near = tests_that_name(copy, place.file, "unit", "contract", "golden")
            far = tests_that_name(copy, place.file, "integration")
            seen = is_noticed(copy, place, (near, far, options.tests.split(), options.then.split()))
            noticed += seen
            words = f"{place.file}:{place.line}: {place.old.strip()} -> {place.new.strip()}"
            print(f"{'noticed' if seen else 'MISSED '} {time.monotonic() - started:4.0f} s  {words}", flush=True)
    print(f"{noticed} of {len(chosen)} noticed, seed {options.seed}")
    return 0 if noticed >= min(options.least, len(chosen)) else 1


if __name__ == "__main__":
    sys.exit(main())
