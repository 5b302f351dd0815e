"""The reference of variables and groups as rows, Markdown and JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.inventory.schema import names, specs
from primus_bootstrap.inventory.schema.reference import json_schema, markdown, markdown_groups, rows, select_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC = """
argument_specs:
  main:
    options:
      demo_wait_s: {type: int, description: How long to wait., default: 5}
      demo_mode: {type: str, choices: [a, "b|c"], description: [First line., Second line.], default: a}
      demo_key: {type: str, required: true, no_log: true, description: The key.}
      demo_users:
        type: list
        elements: dict
        description: People.
        default: []
        options:
          name: {type: str, required: true, description: Login name.}
          uid: {type: int, description: Number.}
"""


@pytest.fixture(autouse=True)
def _one_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    role = tmp_path / "roles" / "demo"
    (role / "meta").mkdir(parents=True)
    (role / "defaults").mkdir()
    (role / "meta" / "argument_specs.yml").write_text(SPEC)
    (role / "defaults" / "main.yml").write_text("demo_wait_s: 5\ndemo_mode: a\ndemo_users: []\n")
    monkeypatch.setattr(content, "roles_dir", lambda: role.parent)
    caches = (specs.load_options, names.known_variables)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def schema_errors(values: str, *, closed: bool = True) -> list[str]:
    """Return the errors that the JSON Schema reports for some variables."""
    schema = json_schema(select_options(), closed=closed)
    jsonschema.Draft202012Validator.check_schema(schema)
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(values))]


def test_rows_have_the_content_of_the_spec() -> None:
    """Type, default, choices, unit, flags and meaning come from the spec; nested keys follow with their path."""
    found = {row.name: row for row in rows(select_options(role="demo"))}

    assert list(found) == ["demo_key", "demo_mode", "demo_users", "demo_users[].name", "demo_users[].uid", "demo_wait_s"]
    assert (found["demo_wait_s"].type, found["demo_wait_s"].default, found["demo_wait_s"].unit) == ("int", "5", "seconds")
    assert (found["demo_mode"].choices, found["demo_mode"].meaning) == ('"a", "b|c"', "First line. Second line.")
    assert (found["demo_key"].required, found["demo_key"].no_log, found["demo_key"].default) == (True, True, "")
    assert (found["demo_users"].type, found["demo_users[].name"].required) == ("list of dict", True)


def test_markdown_has_one_table_for_each_owner() -> None:
    """The `|` of a choice is escaped."""
    lines = markdown(select_options()).splitlines()

    assert "## Cluster" in lines
    assert "## Role `demo`" in lines
    assert '| `demo_mode` | str | `"a"` | First line. Second line. One of: "a", "b\\|c". |' in lines
    assert "| `demo_key` | str, *required*, *secret* |  | The key. |" in lines
    assert "| `demo_wait_s` | int, seconds | `5` | How long to wait. |" in lines


def test_groups_are_listed_by_owner() -> None:
    """The reference lists the groups of this project before those of Kubespray."""
    text = markdown_groups()

    assert text.index("| `gpu_node` |") < text.index("## Groups of Kubespray") < text.index("| `etcd` |")


@pytest.mark.parametrize(
    "values",
    [
        "{demo_wait_s: 7, demo_mode: b|c, demo_users: [{name: ada, uid: 5}]}",
        "{demo_wait_s: '{{ site_wait }}', demo_users: '{{ site_users }}', site_wait: 3}",
        "{demo_users: ['{{ site_user }}'], kube_version: 1.35.4, ansible_user: ops}",
    ],
)
def test_schema_accepts_valid_values(values: str) -> None:
    """Values of the declared types, templates, and variables of the site, Kubespray and Ansible are valid."""
    assert schema_errors(values) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{demo_wait_s: soon}", "'soon' is not valid"),
        ("{demo_mode: d}", "'d' is not valid"),
        ("{demo_users: [{uid: 5}]}", "is not valid"),
        ("{demo_users: [{name: ada, gid: 5}]}", "is not valid"),
        ("{demo_wait: 5}", "'demo_wait' does not match"),
    ],
)
def test_schema_rejects_invalid_values(values: str, message: str) -> None:
    """A wrong type or choice, a missing or unknown nested key, and an unknown variable are errors."""
    assert any(message in error for error in schema_errors(values))


def test_open_schema_accepts_other_variables() -> None:
    """Only a closed schema rejects variables that it does not describe."""
    assert schema_errors("{anything: 1}", closed=False) == []


def test_secret_is_write_only_without_default() -> None:
    """The schema of a secret has `writeOnly` and no default."""
    key = json_schema(select_options(name="demo_key"), closed=False)["properties"]["demo_key"]

    assert key["writeOnly"] is True
    assert "default" not in key


@pytest.mark.parametrize(
    ("role", "name", "what", "fix"),
    [
        ("demon", "", "no such role: demon", "choose from: cluster, demo"),
        ("", "demo_wait", "no role has a variable demo_wait, and no role has that name", "did you mean demo_wait_s?"),
        ("", "kube_version", "kube_version is a variable of Kubespray", "see https://github.com/kubernetes-sigs/kubespray"),
    ],
)
def test_unknown_name_is_an_error(role: str, name: str, what: str, fix: str) -> None:
    """The fix has the nearest name, the choices, or Kubespray's documentation."""
    with pytest.raises(UsageError) as caught:
        select_options(role=role, name=name)

    assert caught.value.what == what
    assert caught.value.fix.startswith(fix)
