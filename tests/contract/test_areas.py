"""The areas of test files (tests/areas.py) contain what the files import and name, so that no change is missed."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.areas import ALWAYS, AREAS, area_of
from tests.changed import ROOT, files_with_area, is_affected, modules_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = files_with_area()
ROLES = sorted(folder.name for folder in (ROOT / "roles").iterdir())
PLAYBOOKS = {str(file.relative_to(ROOT / "playbooks")) for file in (ROOT / "playbooks").rglob("*.yml")}
DATA = {folder.name for folder in (ROOT / "tests/data").iterdir() if folder.is_dir()}
# Words of primus-cli that are also names of roles.
WORDS = {"preflight", "slurm"}
PATH = re.compile(r"\b(?:roles|playbooks|plugins|inventory|docs|tools|workloads|primus_bootstrap|collection|tests/data)/[\w/.-]+\w")
IN_DATA = re.compile(r"\bdata\"? ?/ ?\"?(\w+)", re.IGNORECASE)
INCLUDED = re.compile(r"(?:include_role|import_role): *(?:\{ *name: |\n +name: )(\w+)")


def _file_of(module: str) -> str:
    base = module.replace(".", "/")
    return next((file for file in (f"{base}.py", f"{base}/__init__.py") if (ROOT / file).is_file()), "")


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@cache
def _imports(file: str) -> frozenset[str]:
    """Return the files of this repository that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    own = {name for name in names if name.partition(".")[0] in ("primus_bootstrap", "tests", "workloads")}
    return frozenset(filter(None, map(_file_of, own)))


def _all_imports(test: str) -> set[str]:
    found: set[str] = set()
    remaining = set(modules_of(test))
    while remaining:
        found |= remaining
        remaining = {one for here in remaining for one in _imports(here)} - found
    return found


def _texts(test: str) -> set[str]:
    """Return the strings in a test file and in the modules of `tests` that it needs."""
    nodes = (node for file in modules_of(test) for node in ast.walk(_tree(file)))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _named(test: str) -> Iterator[str]:
    """Return a file in each role, playbook and data folder that the texts name, and the paths in them."""
    texts = _texts(test)
    words = WORDS if "primus_bootstrap/launch" in area_of(test) else set()
    yield from (f"roles/{role}/tasks/main.yml" for role in ROLES if role in texts - words)
    yield from (f"playbooks/{name}" for name in PLAYBOOKS & texts)
    sources = ((ROOT / file).read_text(encoding="utf-8") for file in modules_of(test))
    yield from (f"tests/data/{name}/x" for source in sources for name in IN_DATA.findall(source) if name in DATA)
    for path in {path for text in texts for path in PATH.findall(text) if (ROOT / path).exists()}:
        yield path if (ROOT / path).is_file() else f"{path}/x"


def _used_by_role(role: str) -> set[str]:
    """Return the roles that a role includes, and the files that its links name."""
    folder = ROOT / "roles" / role
    texts = [file.read_text(encoding="utf-8") for name in ("tasks", "handlers") for file in (folder / name).glob("**/*.yml")]
    links = [str(link.resolve().relative_to(ROOT)) for link in folder.rglob("*") if link.is_symlink()]
    return {*links, *(f"roles/{name}/tasks/main.yml" for text in texts for name in INCLUDED.findall(text) if name in ROLES)}


@pytest.mark.parametrize("test", FILES)
def test_area_contains_what_the_file_uses(test: str) -> None:
    """Its imports, and the roles, playbooks and paths that it names, with the roles that these include."""
    used = _all_imports(test) | set(_named(test))
    used |= {file for role in ROLES if is_affected(test, [f"roles/{role}/tasks/main.yml"]) for file in _used_by_role(role)}

    missing = [file for file in sorted(used) if not is_affected(test, [file])]
    assert missing == [], f"add these paths to {test} in tests/areas.py, or remove its area"


def test_paths_and_patterns_exist() -> None:
    """A renamed path would no longer select a test."""
    paths = {path for area in AREAS.values() for path in area} | set(ALWAYS)

    assert [path for path in sorted(paths) if not [*ROOT.glob(path)]] == []
    assert [pattern for pattern in AREAS if not any(fnmatchcase(file, pattern) for file in FILES)] == []
