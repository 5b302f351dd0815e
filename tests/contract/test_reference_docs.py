"""The generated reference is current, and the JSON Schema accepts every shipped topology."""

from __future__ import annotations

from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.schema.groups import load_groups, load_old_names
from primus_bootstrap.inventory.schema.names import is_known_variable, load_earlier_variables
from primus_bootstrap.inventory.schema.reference import json_schema, markdown, markdown_groups, select_options
from tests.shipped import inventory_files

DOCS = Path(__file__).parents[2] / "docs"
VARIABLE_FILES = inventory_files("*/*_vars/**/*.yml")


def test_variables_page_is_current() -> None:
    """docs/reference/variables.md is the output of `schema`."""
    command = "primus-bootstrap schema --format markdown > docs/reference/variables.md"

    assert (DOCS / "reference" / "variables.md").read_text() == markdown(select_options()) + "\n", command


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
