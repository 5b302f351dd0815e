"""Rules for every role: defaults equal specs, tasks/main.yml only includes, and variable names are unique."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.schema import specs

# Other roles include these; no playbook calls them.
INTERNAL = {"kube_common"}
ROLES = sorted(folder.name for folder in content.roles_dir().iterdir() if folder.is_dir() and folder.name not in INTERNAL)
KUBESPRAY = Path(specs.__file__).parents[1] / "data" / "kubespray_variables.yml"
# Types that Ansible accepts for an option.
TYPES = {"str", "int", "float", "bool", "list", "dict", "path", "raw"}


def read(role: str, *parts: str) -> Any:
    """Return a YAML file of a role, or an empty mapping if it does not exist."""
    path = content.roles_dir().joinpath(role, *parts)
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def entry_points(role: str) -> dict[str, dict[str, Any]]:
    """Return the options of every entry point of a role."""
    declared = read(role, "meta", "argument_specs.yml")["argument_specs"]
    return {name: entry.get("options") or {} for name, entry in declared.items()}


def task_files(role: str) -> list[Path]:
    """Return the role's task files, including subfolders."""
    return sorted((content.roles_dir() / role / "tasks").rglob("*.yml"))


def nested(options: dict[str, Any], where: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every option with its path, including nested ones."""
    found = []
    for name, option in options.items():
        found.append((f"{where}.{name}", option))
        found += nested(option.get("options") or {}, f"{where}.{name}")
    return found


@pytest.mark.parametrize("role", ROLES)
def test_defaults_equal_those_of_the_spec(role: str) -> None:
    """The main entry point and defaults/main.yml have the same variables, values and types."""
    defaults = read(role, "defaults", "main.yml")
    declared = {name: option["default"] for name, option in entry_points(role)["main"].items() if "default" in option}

    assert declared == defaults
    assert {name: type(value) for name, value in declared.items()} == {name: type(value) for name, value in defaults.items()}


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_agrees_with_main(role: str) -> None:
    """A variable of several entry points has the same type, choices and default in each."""
    points = entry_points(role)
    facts = ("type", "elements", "choices", "default", "required", "no_log")
    for point, options in points.items():
        for name, option in options.items():
            if name in points["main"]:
                assert {key: option.get(key) for key in facts} == {key: points["main"][name].get(key) for key in facts}, (point, name)


@pytest.mark.parametrize("role", ROLES)
def test_every_option_has_a_type_and_a_description(role: str) -> None:
    """Every option, including nested ones, has a known type and a description."""
    for point, options in entry_points(role).items():
        for where, option in nested(options, point):
            assert option.get("type") in TYPES, where
            text = option.get("description", "")
            assert len(" ".join([text] if isinstance(text, str) else text)) >= 10, where
            if option["type"] == "list":
                assert option.get("elements"), where


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_has_the_prefix_of_its_role(role: str) -> None:
    """Public variables are `<role>_x`, computed ones `_<role>_x`."""
    public = {*read(role, "defaults", "main.yml"), *(name for options in entry_points(role).values() for name in options)}
    computed = set(read(role, "vars", "main.yml"))

    assert {name for name in public if not name.startswith(f"{role}_")} == set()
    assert {name for name in computed if not name.startswith(f"_{role}_")} == set()


def test_no_prefix_of_a_role_is_a_prefix_of_kubespray() -> None:
    """Kubespray also reads hosts.yaml, so it must not have a variable with a role's prefix."""
    names = yaml.safe_load(KUBESPRAY.read_text(encoding="utf-8"))
    # Kubespray's variables for the CRDs of the Prometheus operator; the role has none with this prefix.
    kubespray_prefix = "prometheus_operator_"
    taken = {(role, name) for role in ROLES for name in names if name.startswith(f"{role}_") and not name.startswith(kubespray_prefix)}

    assert len(names) > 1000
    assert taken == set()
    assert not [name for options in entry_points("prometheus").values() for name in options if name.startswith(kubespray_prefix)]


@pytest.mark.parametrize("role", ROLES)
def test_called_task_files_have_a_spec(role: str) -> None:
    """Every `tasks_from` of a playbook has an entry point, and every entry point has a tasks file."""
    files = [file for file in content.playbooks_dir().rglob("*.yml") if file.parent.name != "vars"]
    plays = [play for file in files for play in yaml.safe_load(file.read_text(encoding="utf-8"))]
    imports = [task.get("ansible.builtin.import_role") or {} for play in plays for task in play.get("tasks") or ()]
    called = {imported.get("tasks_from", "main") for imported in imports if imported.get("name") == role}
    points = set(entry_points(role))

    assert called <= points
    assert {point for point in points if not (content.roles_dir() / role / "tasks" / f"{point}.yml").is_file()} == set()


@pytest.mark.parametrize("role", ROLES)
def test_the_main_tasks_file_only_includes(role: str) -> None:
    """tasks/main.yml has only imports and includes."""
    allowed = {"name", "tags", "vars", "when", "ansible.builtin.import_tasks", "ansible.builtin.include_tasks"}
    for task in read(role, "tasks", "main.yml"):
        assert set(task) <= allowed, task["name"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_small_and_documented(role: str) -> None:
    """A role has a README of 8 to 40 lines, tasks files of at most 80 lines, no dependencies, and a default scenario."""
    folder = content.roles_dir() / role
    readme = (folder / "README.md").read_text(encoding="utf-8").splitlines()

    assert 8 <= len(readme) <= 40
    assert [path.name for path in task_files(role) if len(path.read_text(encoding="utf-8").splitlines()) > 80] == []
    assert read(role, "meta", "main.yml")["dependencies"] == []
    assert (folder / "molecule" / "default" / "verify.yml").is_file()


@pytest.mark.parametrize("role", ROLES)
def test_tasks_avoid_constructs_that_hide_errors(role: str) -> None:
    """No facts as `ansible_x`, no inline default for a variable with a default, and no `ignore_errors` without a comment."""
    public = "|".join(read(role, "defaults", "main.yml"))
    for path in task_files(role):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?m)^(?!\s*#).*\n\s*ignore_errors", text), path
        assert not re.search(r"\bansible_(distribution|os_family|kernel|hostname|memtotal|processor)", text), path
        assert not public or not re.search(rf"\b({public})\s*\|\s*default\(", text), path
