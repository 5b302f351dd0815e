"""Test the difference of a Helm release, and the repair of an interrupted one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

release = load_role_module("kube_common", "kube_release")
objects = load_role_module("kube_common", "kube_objects")

MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {0}}}\ndata: {{a: {1}}}\n"


@pytest.mark.parametrize(
    ("states", "needed"),
    [
        ([], ("", 0)),
        (["deployed"], ("", 0)),
        (["superseded", "deployed"], ("", 0)),
        (["pending-install"], ("uninstall", 0)),
        (["failed"], ("uninstall", 0)),
        (["superseded", "deployed", "pending-upgrade"], ("rollback", 2)),
        (["deployed", "failed", "failed"], ("rollback", 1)),
        (["superseded", "uninstalling"], ("rollback", 1)),
    ],
)
def test_interrupted_release_is_repaired(states: list[str], needed: tuple[str, int]) -> None:
    """It is rolled back to its last good revision, or uninstalled without one; a good release is unchanged."""
    history = [{"revision": number, "status": state} for number, state in enumerate(states, 1)]

    assert release.needed_repair(history) == needed


def test_difference_has_added_changed_and_removed_objects() -> None:
    """Objects are compared in any order of the manifest."""
    live = "---\n".join([MAP.format("stays", 1), MAP.format("changes", 1), MAP.format("goes", 1)])
    wanted = "---\n".join([MAP.format("comes", 1), MAP.format("changes", 2), MAP.format("stays", 1)])
    names, text = release.changes(live, wanted, "n")

    assert names == ["~ ConfigMap changes", "+ ConfigMap comes", "- ConfigMap goes"]
    assert "-  a: 1\n+  a: 2" in text


def test_first_install_shows_names_only() -> None:
    """The manifest of a large chart has too many lines."""
    assert release.changes("", MAP.format("one", 1), "n") == (["+ ConfigMap one"], "+ ConfigMap one")


def test_hooks_are_no_difference() -> None:
    """A hook's Job is not in the release's manifest."""
    hook = "kind: Job\nmetadata: {name: j, annotations: {helm.sh/hook: pre-install}}\n"

    assert release.changes(MAP.format("one", 1), MAP.format("one", 1) + "---\n" + hook, "n") == ([], "")


def test_definitions_of_a_chart_and_its_subcharts_are_found(tmp_path: Path) -> None:
    """Files in crds/ are found, also in subcharts; templates are not."""
    definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {}}}\n"
    for place, name in (("crds", "a"), ("charts/sub/crds", "b"), ("templates/crds", "never")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "one.yaml").write_text(definition.format(name))

    assert [one["metadata"]["name"] for one in objects.chart_definitions(tmp_path)] == ["b", "a"]


def test_list_is_expanded() -> None:
    """A List is applied item by item."""
    assert [one["kind"] for one in objects.documents("kind: List\nitems: [{kind: A}]\n---\nkind: B\n---\n")] == ["A", "B"]


def test_yaml_is_parsed_like_by_kubernetes() -> None:
    """A single `=` is a string, and a comment may follow the dashes directly."""
    assert objects.documents("kind: A\nenum: [=, '=~']\n---# more\nkind: B\n") == [{"kind": "A", "enum": ["=", "=~"]}, {"kind": "B"}]
