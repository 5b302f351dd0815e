"""`schema`: the reference of variables, as rows, Markdown and JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError
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


def judge(values: str, *, closed: bool = True) -> list[str]:
    """Return the messages of a JSON Schema check of some variables."""
    schema = json_schema(select_options(), closed=closed)
    jsonschema.Draft202012Validator.check_schema(schema)
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(values))]


def test_rows_hold_everything_that_the_spec_says() -> None:
    """Type, default, choices, unit, marks and meaning are taken from the spec; nested keys follow with their path."""
    found = {row.name: row for row in rows(select_options(role="demo"))}

    assert list(found) == ["demo_key", "demo_mode", "demo_users", "demo_users[].name", "demo_users[].uid", "demo_wait_s"]
    assert (found["demo_wait_s"].type, found["demo_wait_s"].default, found["demo_wait_s"].unit) == ("int", "5", "seconds")
    assert (found["demo_mode"].choices, found["demo_mode"].meaning) == ('"a", "b|c"', "First line. Second line.")
    assert (found["demo_key"].required, found["demo_key"].no_log, found["demo_key"].default) == (True, True, "")
    assert (found["demo_users"].type, found["demo_users[].name"].required) == ("list of dict", True)


def test_markdown_is_one_table_an_owner() -> None:
    """Every cell survives as one cell: the bars of a choice are escaped."""
    lines = markdown(select_options()).splitlines()

    assert "## Cluster" in lines
    assert "## Role `demo`" in lines
    assert '| `demo_mode` | str | `"a"` | First line. Second line. One of: "a", "b\\|c". |' in lines
    assert "| `demo_key` | str, *required*, *secret* |  | The key. |" in lines
    assert "| `demo_wait_s` | int, seconds | `5` | How long to wait. |" in lines


def test_groups_are_listed_by_who_reads_them() -> None:
    """The groups' reference holds ours and Kubespray's, each with its meaning."""
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
def test_schema_takes_what_is_right(values: str) -> None:
    """Values of the declared types, templates in place of any, names of the site, Kubespray and Ansible."""
    assert judge(values) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("{demo_wait_s: soon}", "'soon' is not valid"),
        ("{demo_mode: d}", "'d' is not valid"),
        ("{demo_users: [{uid: 5}]}", "is not valid"),
        ("{demo_users: [{name: ada, gid: 5}]}", "is not valid"),
        ("{demo_wait: 5}", "'demo_wait' does not match"),
    ],
)
def test_schema_refuses_what_is_wrong(values: str, said: str) -> None:
    """A wrong type or choice, a nested key that is missing or unknown, a variable that nothing knows."""
    assert any(said in message for message in judge(values))


def test_schema_of_one_role_is_open() -> None:
    """Asked for a part only, the schema does not call the rest wrong."""
    assert judge("{anything: 1}", closed=False) == []


def test_secret_is_marked_and_shows_no_default() -> None:
    """JSON Schema's word for what is never read back is `writeOnly`."""
    key = json_schema(select_options(name="demo_key"), closed=False)["properties"]["demo_key"]

    assert key["writeOnly"] is True
    assert "default" not in key


@pytest.mark.parametrize(
    ("role", "name", "what", "fix"),
    [
        ("demon", "", "no such role: demon", "choose from: cluster, demo"),
        ("", "demo_wait", "no role has a variable demo_wait", "did you mean demo_wait_s?"),
        ("", "kube_version", "kube_version is a variable of Kubespray", "see https://github.com/kubernetes-sigs/kubespray"),
    ],
)
def test_unknown_names_are_answered(role: str, name: str, what: str, fix: str) -> None:
    """A role or variable that does not exist gives the nearest one, or says whose it is."""
    with pytest.raises(PlanError) as caught:
        select_options(role=role, name=name)

    assert caught.value.what == what
    assert caught.value.fix.startswith(fix)
