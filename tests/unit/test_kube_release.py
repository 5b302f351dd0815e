"""What would change of a Helm release, and what one that was left half done needs."""

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
def test_a_release_that_was_left_half_done_is_put_back(states: list[str], needed: tuple[str, int]) -> None:
    """To its last good revision, or away where it never had one; a release that is well is left alone."""
    history = [{"revision": number, "status": state} for number, state in enumerate(states, 1)]

    assert release.cure(history) == needed


def test_a_difference_names_what_comes_changes_and_goes() -> None:
    """Objects are compared one by one, whatever their order in the manifest."""
    live = "---\n".join([MAP.format("stays", 1), MAP.format("changes", 1), MAP.format("goes", 1)])
    wanted = "---\n".join([MAP.format("comes", 1), MAP.format("changes", 2), MAP.format("stays", 1)])
    names, text = release.changes(live, wanted, "n")

    assert names == ["~ ConfigMap changes", "+ ConfigMap comes", "- ConfigMap goes"]
    assert "-  a: 1\n+  a: 2" in text


def test_a_first_install_is_shown_by_names() -> None:
    """A large chart is a hundred thousand lines; who installs it wants to see what comes, not all of it."""
    assert release.changes("", MAP.format("one", 1), "n") == (["+ ConfigMap one"], "+ ConfigMap one")


def test_hooks_are_no_part_of_a_release() -> None:
    """A Job that Helm runs in between is not in the release's manifest, and is no difference."""
    hook = "kind: Job\nmetadata: {name: j, annotations: {helm.sh/hook: pre-install}}\n"

    assert release.changes(MAP.format("one", 1), MAP.format("one", 1) + "---\n" + hook, "n") == ([], "")


def test_definitions_of_a_chart_and_its_subcharts_are_found(tmp_path: Path) -> None:
    """Helm installs what lies in crds/ once; all of it is found, and nothing from templates."""
    definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {}}}\n"
    for place, name in (("crds", "a"), ("charts/sub/crds", "b"), ("templates/crds", "never")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "one.yaml").write_text(definition.format(name))

    assert [one["metadata"]["name"] for one in objects.chart_definitions(tmp_path)] == ["b", "a"]


def test_a_list_is_its_items() -> None:
    """A file that holds a List is applied item by item."""
    assert [one["kind"] for one in objects.documents("kind: List\nitems: [{kind: A}]\n---\nkind: B\n---\n")] == ["A", "B"]


def test_yaml_is_read_as_kubernetes_reads_it() -> None:
    """A bare `=` is a text, and a comment may stand right behind the dashes."""
    assert objects.documents("kind: A\nenum: [=, '=~']\n---# more\nkind: B\n") == [{"kind": "A", "enum": ["=", "=~"]}, {"kind": "B"}]
