"""The generated reference is current, and the JSON Schema accepts every shipped topology."""

from __future__ import annotations

from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory import find_problems
from primus_bootstrap.inventory.schema.groups import load_earlier_variables, load_groups, load_old_names
from primus_bootstrap.inventory.schema.names import is_known_variable
from primus_bootstrap.inventory.schema.reference import common_markdown, json_schema, markdown, markdown_groups, select_options
from primus_bootstrap.inventory.schema.specs import load_common_variables, load_options
from primus_bootstrap.inventory.schema.type_check import Fault, check_value
from tests.shipped import inventory_files

DOCS = Path(__file__).parents[2] / "docs"
VARIABLE_FILES = inventory_files("*/*_vars/**/*.yml")


def test_variables_pages_are_current() -> None:
    """docs/reference/variables.md and all-variables.md are the output of `schema`."""
    command = "primus-bootstrap schema --format markdown > docs/reference/variables.md"
    command_all = "primus-bootstrap schema --all --format markdown > docs/reference/all-variables.md"

    assert (DOCS / "reference" / "variables.md").read_text() == common_markdown() + "\n", command
    assert (DOCS / "reference" / "all-variables.md").read_text() == markdown(select_options()) + "\n", command_all


def test_common_variables_exist_and_their_examples_are_valid() -> None:
    """Every variable that `schema` shows first is declared once, and its example passes the check of hosts.yaml."""
    document = yaml.compose((DOCS.parent / "primus_bootstrap/inventory/data/common_variables.yml").read_text())
    assert document is not None
    topics = document.value
    examples = [(key.value, value) for _, topic in topics for key, value in topic.value]
    names = [name for name, _ in examples]

    assert sorted(set(names)) == sorted(names)
    assert set(names) <= set(load_options())
    faults = [fault for name, value in examples for fault in check_value(load_options()[name], value, quotable=True)]
    assert [fault for fault in faults if isinstance(fault, Fault)] == []


def test_playbooks_leave_common_variables_to_hosts_yaml() -> None:
    """Variables of a play replace those of the inventory, so such a variable reads the value of hosts.yaml first."""
    common = {name for topic in load_common_variables().values() for name in dict(topic)}
    files = sorted(content.playbooks_dir().glob("vars/*.yml"))
    values = {(path.name, name): str(value) for path in files for name, value in (yaml.safe_load(path.read_text("utf-8")) or {}).items()}
    stated = {(file, name): value for (file, name), value in values.items() if name in common}

    assert ("users_groups.yml", "users_groups_login") in stated
    assert [key for key, value in stated.items() if f"hostvars[inventory_hostname]['{key[1]}'] | default(" not in value] == []


@pytest.mark.parametrize("topic", load_common_variables())
def test_examples_of_common_variables_pass_validate(topic: str, tmp_path: Path) -> None:
    """A reader copies them. Only the example of a host key is a placeholder: every real key would be wrong."""
    groups = {"gpu_node": {"hosts": {"n1": None}}, "airgap_mirror": {"hosts": {"m1": None}}}
    examples = dict(load_common_variables()[topic])
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"all": {"vars": examples, "children": groups}}))

    assert [str(problem) for problem in find_problems(tmp_path) if problem.rule != "host-key"] == []


def test_groups_page_is_current() -> None:
    """docs/reference/groups.md is the output of `schema --groups`."""
    command = "primus-bootstrap schema --groups --format markdown > docs/reference/groups.md"

    assert (DOCS / "reference" / "groups.md").read_text() == markdown_groups() + "\n", command


def test_schema_is_valid_json_schema() -> None:
    """The schema of all variables is a valid JSON Schema."""
    jsonschema.Draft202012Validator.check_schema(json_schema(select_options(), closed=True))


@pytest.mark.parametrize("path", VARIABLE_FILES, ids=lambda path: str(path.relative_to(content.topologies_dir())))
def test_shipped_topologies_match_the_schema(path: Path) -> None:
    """Every shipped variable file matches the schema."""
    validator = jsonschema.Draft202012Validator(json_schema(select_options(), closed=True))
    errors = [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()) or {})]

    assert errors == []


def test_imported_names_exist() -> None:
    """Each old name maps to a known group or variable."""
    assert set(load_old_names()["groups"].values()) <= set(load_groups())
    assert [name for name in load_old_names()["variables"].values() if not is_known_variable(name)] == []


def test_earlier_variables_are_gone_and_their_new_names_exist() -> None:
    """A renamed variable maps to a known one, a removed one has a reason, and no earlier name is still in use."""
    earlier = load_earlier_variables()

    assert [new for new in earlier["renamed"].values() if not is_known_variable(new)] == []
    assert [old for old in (*earlier["renamed"], *earlier["removed"]) if is_known_variable(old)] == []
    assert [old for old, reason in earlier["removed"].items() if not reason.strip()] == []


def test_import_page_names_every_old_spelling_of_groups() -> None:
    """The page on `import` lists the common old group names."""
    page = (DOCS / "import.md").read_text()

    assert [name for name in ("kube-master", "kube-node", "k8s-cluster", "calico-rr", "slurm-master") if f"`{name}`" not in page] == []
