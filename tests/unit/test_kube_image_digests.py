"""Filter `kube_image_digests`: digests of the lock file in values and objects of charts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from tests.golden.chart_rig import chart_roles
from tests.unit.role_module import load_file

pinned: Any = load_file(content.plugins_dir() / "filter" / "kube_image_digests.py").kube_image_digests
CORE = "a" * 64
LOCK = [
    {"name": "registry.example.com:5000/goharbor/harbor-core:v2.15.1", "sha256": CORE},
    {"name": "docker.io/tool:1", "sha256": "b" * 64},
]


def place(form: str, value: str = "core.image.tag") -> list[dict[str, str]]:
    """Return the place of one image."""
    return [{"image": "goharbor/harbor-core", "value": value, "form": form}]


@pytest.mark.parametrize(
    ("form", "key", "expected"),
    [("tag", "tag", f"v2.15.1@sha256:{CORE}"), ("sha", "sha", CORE), ("digest", "digest", f"sha256:{CORE}")],
)
def test_a_value_gets_the_digest_in_the_form_of_its_chart(form: str, key: str, expected: str) -> None:
    """The server in the lock does not matter, because a mirror has the same digests. The values of the caller stay as they are."""
    values = {"core": {"replicas": 2}}
    found = pinned(values, LOCK, place(form, f"core.image.{key}"))

    assert found == {"core": {"replicas": 2, "image": {key: expected}}}
    assert values == {"core": {"replicas": 2}}


@pytest.mark.parametrize("tag", ["v2.15.0", f"v2.15.0@sha256:{'c' * 64}"])
def test_a_tag_or_digest_of_the_site_stays(tag: str) -> None:
    """The lock describes another image."""
    values = {"core": {"image": {"tag": tag}}}

    assert pinned(values, LOCK, place("tag")) == values


def test_a_digest_of_the_site_stays() -> None:
    """It is more exact than the lock, which may be older."""
    values = {"core": {"image": {"sha": "c" * 64}}}

    assert pinned(values, LOCK, place("sha", "core.image.sha")) == values


def test_two_locked_tags_are_told_apart_by_the_value() -> None:
    """Without a tag in the values, the chart decides, and nothing is pinned: the values stay, or Helm would upgrade the release."""
    lock = [*LOCK, {"name": "goharbor/harbor-core:v2.14.0", "sha256": "d" * 64}]

    assert pinned({}, lock, place("tag")) == {}
    assert pinned({"core": {"image": {"tag": "v2.14.0"}}}, lock, place("tag"))["core"]["image"]["tag"] == f"v2.14.0@sha256:{'d' * 64}"


def test_complete_references_get_a_digest_wherever_they_are() -> None:
    """Images in objects of the roles, and in values that take a whole reference. Other texts stay."""
    item = {"spec": {"containers": [{"image": "docker.io/tool:1", "args": ["oci://docker.io/tool:1", "tool:1"]}], "n": 3}}

    assert pinned([item], LOCK)[0]["spec"] == {
        "containers": [{"image": f"docker.io/tool:1@sha256:{'b' * 64}", "args": ["oci://docker.io/tool:1", "tool:1"]}],
        "n": 3,
    }
    assert pinned({"a": "docker.io/tool:1"}, []) == {"a": "docker.io/tool:1"}


def test_every_chart_has_its_values() -> None:
    """A new chart role lists where its images are. The roles of the GPU operators have a list for each vendor."""
    variables = yaml.safe_load((content.roles_dir() / "kube_common" / "vars" / "main.yml").read_text(encoding="utf-8"))
    places = variables["kube_common_image_values"]

    assert set(places) == {*chart_roles(), "gpu_operator_amd", "gpu_operator_nvidia"}
    assert {one["form"] for items in places.values() for one in items} == {"tag", "sha", "digest"}
