"""What every role owes the house: defaults that equal its specs, a table of contents, and names that nobody else has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.schema import specs

# What other roles include or read; no role of its own.
INTERNAL = {"_common", "kube_common"}
ROLES = sorted(folder.name for folder in content.roles_dir().iterdir() if folder.is_dir() and folder.name not in INTERNAL)
KUBESPRAY = Path(specs.__file__).parents[1] / "data" / "kubespray_variables.yml"
# Of Ansible's own words for an option; `required_if` and the like stand beside them.
TYPES = {"str", "int", "float", "bool", "list", "dict", "path", "raw"}


def read(role: str, *parts: str) -> Any:
    """Return a YAML file of a role, or an empty mapping where it has none."""
    path = content.roles_dir().joinpath(role, *parts)
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def entry_points(role: str) -> dict[str, dict[str, Any]]:
    """Return the options of every entry point of a role."""
    declared = read(role, "meta", "argument_specs.yml")["argument_specs"]
    return {name: entry.get("options") or {} for name, entry in declared.items()}


def task_files(role: str) -> list[Path]:
    """Return the role's task files, those in folders of their own too."""
    return sorted((content.roles_dir() / role / "tasks").rglob("*.yml"))


def nested(options: dict[str, Any], where: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every option with its path, those inside others too."""
    found = []
    for name, option in options.items():
        found.append((f"{where}.{name}", option))
        found += nested(option.get("options") or {}, f"{where}.{name}")
    return found


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_the_specs_defaults(role: str) -> None:
    """The main entry point and defaults/main.yml give the same variables the same values, of the same kind."""
    defaults = read(role, "defaults", "main.yml")
    declared = {name: option["default"] for name, option in entry_points(role)["main"].items() if "default" in option}

    assert declared == defaults
    assert {name: type(value) for name, value in declared.items()} == {name: type(value) for name, value in defaults.items()}


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_agrees_with_main(role: str) -> None:
    """A variable that another entry point declares as well has the same type, choices and default there."""
    points = entry_points(role)
    facts = ("type", "elements", "choices", "default", "required", "no_log")
    for point, options in points.items():
        for name, option in options.items():
            if name in points["main"]:
                assert {key: option.get(key) for key in facts} == {key: points["main"][name].get(key) for key in facts}, (point, name)


@pytest.mark.parametrize("role", ROLES)
def test_every_option_says_its_type_and_meaning(role: str) -> None:
    """No option, nested ones included, is without a type that Ansible knows and a sentence that says what it is for."""
    for point, options in entry_points(role).items():
        for where, option in nested(options, point):
            assert option.get("type") in TYPES, where
            text = option.get("description", "")
            assert len(" ".join([text] if isinstance(text, str) else text)) >= 10, where
            if option["type"] == "list":
                assert option.get("elements"), where


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_bears_the_roles_prefix(role: str) -> None:
    """Public variables are `<role>_x`, computed ones `_<role>_x`."""
    public = {*read(role, "defaults", "main.yml"), *(name for options in entry_points(role).values() for name in options)}
    computed = set(read(role, "vars", "main.yml"))

    assert {name for name in public if not name.startswith(f"{role}_")} == set()
    assert {name for name in computed if not name.startswith(f"_{role}_")} == set()


def test_no_roles_prefix_is_kubesprays() -> None:
    """hosts.yaml is Kubespray's inventory as well: a variable with a role's prefix must not mean something to Kubespray."""
    names = yaml.safe_load(KUBESPRAY.read_text(encoding="utf-8"))
    # Of the CRDs of Prometheus' operator: no variable of the role begins so.
    theirs = "prometheus_operator_"
    taken = {(role, name) for role in ROLES for name in names if name.startswith(f"{role}_") and not name.startswith(theirs)}

    assert len(names) > 1000
    assert taken == set()
    assert not [name for options in entry_points("prometheus").values() for name in options if name.startswith(theirs)]


@pytest.mark.parametrize("role", ROLES)
def test_what_a_playbook_calls_has_a_spec(role: str) -> None:
    """Every tasks file that a playbook names with `tasks_from` has an entry point, and every entry point its tasks file."""
    files = [file for file in content.playbooks_dir().rglob("*.yml") if file.parent.name != "vars"]
    plays = [play for file in files for play in yaml.safe_load(file.read_text(encoding="utf-8"))]
    imports = [task.get("ansible.builtin.import_role") or {} for play in plays for task in play.get("tasks") or ()]
    called = {words.get("tasks_from", "main") for words in imports if words.get("name") == role}
    points = set(entry_points(role))

    assert called <= points
    assert {point for point in points if not (content.roles_dir() / role / "tasks" / f"{point}.yml").is_file()} == set()


@pytest.mark.parametrize("role", ROLES)
def test_the_main_tasks_file_is_a_table_of_contents(role: str) -> None:
    """tasks/main.yml imports and includes; it has no task of its own."""
    allowed = {"name", "tags", "vars", "when", "ansible.builtin.import_tasks", "ansible.builtin.include_tasks"}
    for task in read(role, "tasks", "main.yml"):
        assert set(task) <= allowed, task["name"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_small_and_explained(role: str) -> None:
    """Each has a README of 8 to 40 lines, tasks files of at most 80, meta without dependencies, and a default scenario."""
    folder = content.roles_dir() / role
    readme = (folder / "README.md").read_text(encoding="utf-8").splitlines()

    assert 8 <= len(readme) <= 40
    assert [path.name for path in task_files(role) if len(path.read_text(encoding="utf-8").splitlines()) > 80] == []
    assert read(role, "meta", "main.yml")["dependencies"] == []
    assert (folder / "molecule" / "default" / "verify.yml").is_file()


@pytest.mark.parametrize("role", ROLES)
def test_no_task_hides_anything(role: str) -> None:
    """No facts in the bare `ansible_x` form, no inline default on a public variable that has one, no `ignore_errors` without a reason."""
    public = "|".join(read(role, "defaults", "main.yml"))
    for path in task_files(role):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?m)^(?!\s*#).*\n\s*ignore_errors", text), path
        assert not re.search(r"\bansible_(distribution|os_family|kernel|hostname|memtotal|processor)", text), path
        assert not public or not re.search(rf"\b({public})\s*\|\s*default\(", text), path
