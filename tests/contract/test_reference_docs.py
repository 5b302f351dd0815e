"""The generated reference says what the specs say, and the schema for editors takes every shipped topology."""

from __future__ import annotations

from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.ini.conversion import _NAMES
from primus_bootstrap.inventory.schema.groups import load_groups
from primus_bootstrap.inventory.schema.names import is_known_variable
from primus_bootstrap.inventory.schema.reference import json_schema, markdown, markdown_groups, select_options
from tests.shipped import inventory_files

DOCS = Path(__file__).parents[2] / "docs"
VARIABLE_FILES = inventory_files("*/*_vars/**/*.yml")


def test_variables_are_as_generated() -> None:
    """docs/reference/variables.md is what `schema` prints: a changed default, type or meaning must be written anew."""
    again = "primus-bootstrap schema --format markdown > docs/reference/variables.md"

    assert (DOCS / "reference" / "variables.md").read_text() == markdown(select_options()) + "\n", again


def test_groups_are_as_generated() -> None:
    """docs/reference/groups.md is what `schema --groups` prints."""
    again = "primus-bootstrap schema --groups --format markdown > docs/reference/groups.md"

    assert (DOCS / "reference" / "groups.md").read_text() == markdown_groups() + "\n", again


def test_schema_is_valid_json_schema() -> None:
    """The schema of all variables is itself a valid schema of its draft."""
    jsonschema.Draft202012Validator.check_schema(json_schema(select_options(), closed=True))


@pytest.mark.parametrize("path", VARIABLE_FILES, ids=lambda path: str(path.relative_to(content.topologies_dir())))
def test_shipped_topologies_fit_the_schema(path: Path) -> None:
    """Every file of variables that we ship passes the schema that editors use."""
    validator = jsonschema.Draft202012Validator(json_schema(select_options(), closed=True))
    errors = [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()) or {})]

    assert errors == []


def test_imported_names_exist() -> None:
    """What `import` writes in place of an old name is a group or variable of today."""
    data = yaml.safe_load(_NAMES.read_text())

    assert set(data["groups"].values()) <= set(load_groups())
    assert [name for name in data["variables"].values() if not is_known_variable(name)] == []


def test_import_page_names_every_old_spelling_of_groups() -> None:
    """The page on `import` knows the spellings that it promises."""
    page = (DOCS / "import.md").read_text()

    assert [name for name in ("kube-master", "kube-node", "k8s-cluster", "calico-rr", "slurm-master") if f"`{name}`" not in page] == []
