"""Every name that a role of the collection uses is found: modules, filters, lookups, roles, imports and files."""

from __future__ import annotations

import ast
import importlib.util
import json
import posixpath
import re
import sys
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import jinja2
import pytest
import yaml
from ansible.galaxy.dependency_resolution.versioning import meets_requirements
from ansible.playbook.block import Block
from ansible.playbook.handler import Handler
from ansible.plugins.loader import filter_loader
from jinja2 import nodes

from tests.contract.test_task_names import items_in
from tools.build_collection import ROOT, File, collect, filter_names

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "primus.bootstrap"
# Patterns in templates have escape sequences that Python does not know.
pytestmark = pytest.mark.filterwarnings("ignore:.*invalid escape sequence:DeprecationWarning")
GALAXY = yaml.safe_load((ROOT / "collection" / "galaxy.yml").read_text(encoding="utf-8"))
KEYWORDS = {*Handler.fattributes, *Block.fattributes, "local_action"}
# Their values are expressions without delimiters.
EXPRESSIONS = ("when", "failed_when", "changed_when", "until", "that")
JINJA = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])  # noqa: S701 - nothing is rendered


@cache
def built() -> dict[str, File]:
    """Return the files of the collection."""
    return collect(ROOT, NAME)


def text(path: str) -> str:
    """Return a file of the collection."""
    return built()[path].content.decode()


def plugins(kind: str) -> set[str]:
    """Return the names of the plug-ins of a kind."""
    return {PurePosixPath(path).stem for path in built() if path.startswith(f"plugins/{kind}/")}


@cache
def filters() -> set[str]:
    """Return the full names of the collection's filters: the build writes no others."""
    return {f"{NAME}.{name}" for names in filters_by_file().values() for name in names}


@cache
def filters_by_file() -> dict[str, set[str]]:
    """Return the short names of the filters by the file of the collection."""
    sources = [*ROOT.glob("roles/*/filter_plugins/*.py"), *ROOT.glob("plugins/filter/*.py")]
    return {f"plugins/filter/{path.name}": filter_names(path) for path in sources}


@cache
def role_data() -> dict[str, Any]:
    """Return the YAML files of the roles, except their specifications, whose descriptions are no templates."""
    paths = [path for path in built() if re.match(r"roles/\w+/(tasks|handlers|vars|defaults)/.*\.yml$", path)]
    return {path: yaml.load(text(path), Loader=yaml.CSafeLoader) for path in paths}


def tasks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every task and handler with the path of its file."""
    for path, data in role_data().items():
        if path.split("/")[2] in ("tasks", "handlers"):
            yield from ((path, item) for item in items_in(data))


def actions(task: dict[str, Any]) -> set[str]:
    """Return the module or action of a task; a block has none."""
    return {key for key in task if key not in KEYWORDS and not key.startswith("with_")}


def templates(value: Any, key: str = "") -> Iterator[str]:
    """Yield every template of a value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from templates(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from templates(inner, key)
    elif isinstance(value, str) and ("{{" in value or "{%" in value):
        yield value
    elif isinstance(value, str) and key in EXPRESSIONS:
        yield f"{{{{ {value} }}}}"


@cache
def parsed() -> list[tuple[str, nodes.Template]]:
    """Return every template of the roles with the path of its file."""
    found = [(path, template) for path, data in role_data().items() for template in templates(data)]
    found += [(path, text(path)) for path in built() if re.match(r"roles/\w+/templates/", path)]
    return [(path, JINJA.parse(template)) for path, template in found]


def first_text(arguments: list[nodes.Expr]) -> str:
    """Return the first argument of a call if it is a text."""
    first = arguments[0] if arguments else None
    return first.value if isinstance(first, nodes.Const) and isinstance(first.value, str) else ""


def lookups() -> set[tuple[str, str]]:
    """Return the lookups of all templates with the paths of their files."""
    calls = [(path, call) for path, tree in parsed() for call in tree.find_all(nodes.Call)]
    words = ("lookup", "query", "q")
    return {(path, first_text(call.args)) for path, call in calls if isinstance(call.node, nodes.Name) and call.node.name in words}


# The packages of Ansible's own plug-ins; those of its filters do not have their names.
BUILTIN = {"modules": "ansible.modules", "action": "ansible.plugins.action", "lookup": "ansible.plugins.lookup"}


def exists(kind: str, name: str) -> bool:
    """Return whether the collection, Ansible or an installed collection has a plug-in."""
    collection, _, short = name.rpartition(".")
    if collection == NAME:
        return name in filters() if kind == "filter" else short in plugins(kind)
    if collection in ("", "ansible.builtin"):
        if kind == "filter":
            return short in JINJA.filters or filter_loader.get(f"ansible.builtin.{short}") is not None
        return importlib.util.find_spec(f"{BUILTIN[kind]}.{short}") is not None
    return importlib.util.find_spec(f"ansible_collections.{collection}.plugins.{kind}.{short}") is not None


def test_every_module_is_found() -> None:
    """A short name is a module or action of the collection; any other name is found in Ansible or in a collection."""
    used = {(path, name) for path, task in tasks() for name in actions(task)}
    known = {name: any(exists(kind, name if "." in name else f"{NAME}.{name}") for kind in ("modules", "action")) for _, name in used}

    assert len(used) > 500
    assert {(path, name) for path, name in used if not known[name]} == set()


def used_filters() -> set[tuple[str, str]]:
    """Return the filters of all templates with the paths of their files, also those that are the argument of `map`."""
    found = [(path, node) for path, tree in parsed() for node in tree.find_all(nodes.Filter)]
    mapped = {(path, first_text(node.args)) for path, node in found if node.name == "map"}
    return {(path, name) for path, name in {*mapped, *((path, node.name) for path, node in found)} if name}


def test_every_filter_is_found() -> None:
    """Ansible finds a filter of a collection by its full name only."""
    used = used_filters()
    known = {name: exists("filter", name) for _, name in used}

    assert len([name for _, name in used if name.startswith(f"{NAME}.")]) > 50
    assert {(path, name) for path, name in used if not known[name]} == set()


def test_every_lookup_is_found() -> None:
    """A lookup of the collection has its full name."""
    used = lookups()

    assert ("roles/primus_cli/tasks/install.yml", f"{NAME}.primus_cli_program") in used
    assert {(path, name) for path, name in used if not exists("lookup", name)} == set()


def test_every_included_role_is_found() -> None:
    """A role includes another of the collection by its short name, which Ansible finds."""
    roles = {path.split("/")[1] for path in built() if path.startswith("roles/")}
    includes = [task.get(f"ansible.builtin.{word}_role") for _, task in tasks() for word in ("include", "import")]
    used = {include["name"] for include in includes if include}

    assert used
    assert used - roles == set()


def imports(path: str) -> set[str]:
    """Return the modules that a Python file imports anywhere."""
    return {name for node in ast.walk(ast.parse(text(path))) if isinstance(node, ast.Import | ast.ImportFrom) for name in imported(node)}


def imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return {name.name for name in node.names}
    package = f"ansible_collections.{NAME}.plugins.module_utils"
    return {f"{package}.{name.name}" for name in node.names} if node.module == package else {node.module or ""}


def test_every_import_of_shared_code_is_found() -> None:
    """Plug-ins import shared code from the collection, and from `ansible.module_utils` only what Ansible has."""
    own = {f"ansible_collections.{NAME}.plugins.module_utils.{name}" for name in plugins("module_utils")}
    used = {(path, name) for path in built() if path.startswith("plugins/") for name in imports(path) if "module_utils" in name}

    assert len({name for _, name in used} & own) > 20
    assert {(path, name) for path, name in used if name not in own and importlib.util.find_spec(name) is None} == set()


def test_every_file_beside_a_role_is_found() -> None:
    """A path that begins with `role_path`, or the folder of its pattern, is in the collection."""
    used = [(path, rest) for path in role_data() for rest in re.findall(r"role_path(?: \}\}| ~ ')(/[^'\"*\s,\]]+)", text(path))]
    full = {(path, posixpath.normpath("/".join(path.split("/")[:2]) + rest)) for path, rest in used}

    assert full
    assert {(path, file) for path, file in full if not any(one == file or one.startswith(f"{file}/") for one in built())} == set()


@pytest.mark.parametrize("kind", ["action", "filter", "lookup"])
def test_plugins_load_without_optional_packages(kind: str) -> None:
    """Ansible loads every filter of a collection to find one, and warns about those that it cannot load."""
    always = {*sys.stdlib_module_names, "ansible", "ansible_collections", "cryptography", "yaml"}
    found = [(path, node) for path in built() if path.startswith(f"plugins/{kind}/") for node in ast.parse(text(path)).body]
    loaded = {(path, name) for path, node in found if isinstance(node, ast.Import | ast.ImportFrom) for name in imported(node)}

    assert loaded
    assert {(path, name) for path, name in loaded if name.split(".")[0] not in always} == set()


def test_the_collection_has_no_leftovers() -> None:
    """No plug-in stays beside a role, where Ansible would offer it to all plays under its short name; no scenario is packed."""
    folders = {path.split("/")[2] for path in built() if path.startswith("roles/")}

    assert folders <= {"README.md", "defaults", "files", "handlers", "meta", "tasks", "templates", "vars"}
    assert not [path for path in built() if "__pycache__" in path]


def test_dependencies_are_the_collections_in_use() -> None:
    """galaxy.yml names every collection that a role uses and no other, and the installed version is in its range."""
    words = {*(name for _, task in tasks() for name in actions(task)), *(name for _, name in used_filters())}
    used = {name.rpartition(".")[0] for name in words if "." in name} - {"ansible.builtin", NAME}

    assert set(GALAXY["dependencies"]) == used
    for collection, wanted in GALAXY["dependencies"].items():
        manifest = files("ansible_collections").joinpath(f"{collection.replace('.', '/')}/MANIFEST.json")
        installed = json.loads(manifest.read_text(encoding="utf-8"))["collection_info"]["version"]
        assert meets_requirements(installed, wanted), (collection, installed, wanted)


def test_the_collection_requires_the_ansible_of_the_package() -> None:
    """meta/runtime.yml has the range of ansible-core in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = next(word.removeprefix("ansible-core") for word in project["dependencies"] if word.startswith("ansible-core"))

    assert yaml.safe_load(text("meta/runtime.yml")) == {"requires_ansible": core}


def plugins_of_roles() -> set[tuple[str, str]]:
    """Return the plug-ins that run in the process of Ansible, as pairs of a role and a file."""
    users = {(path, f"plugins/action/{name}.py") for path, task in tasks() for name in actions(task)}
    users |= {(path, f"plugins/lookup/{name.removeprefix(f'{NAME}.')}.py") for path, name in lookups()}
    for path, name in used_filters():
        users |= {(path, file) for file, names in filters_by_file().items() if name.removeprefix(f"{NAME}.") in names}
    return {(path.split("/")[1], file) for path, file in users if file in built()}


@pytest.mark.parametrize("package", ["primus_bootstrap", "bcrypt"])
def test_the_manual_lists_what_roles_need_on_the_controller(package: str) -> None:
    """docs/collection.md names the roles with a plug-in that imports the package in the process of Ansible."""
    rows = [
        line.split("|") for line in (ROOT / "docs" / "collection.md").read_text(encoding="utf-8").splitlines() if f"| `{package}`" in line
    ]
    needing = {role for role, file in plugins_of_roles() if any(name.split(".")[0] == package for name in imports(file))}

    assert set(re.findall(r"`(\w+)`", rows[0][1])) == needing
