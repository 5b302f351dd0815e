"""Test the comparison of Kubernetes objects: dropped and changed fields, differences without secrets, conditions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import load_role_module

load_role_module("kube_common", "kube_reach")

from ansible.module_utils.kube_fields import (  # noqa: E402 - loaded above, as Ansible does
    difference,
    lost_fields,
    meets,
    same_value,
    title,
    written,
)

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "n"}}


def test_dropped_field_is_reported_with_its_path() -> None:
    """A field that the server did not store is reported once, with the key of its list item."""
    asked = {
        "spec": {"suspend": True, "template": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "resizePolicy": [{"r": 1}]}]}}
    }
    found = {"spec": {"template": {"containers": [{"name": "b"}, {"name": "a", "image": "x", "imagePullPolicy": "Always"}]}}}

    assert [one.path for one in lost_fields(asked, found)] == ["spec.suspend", "spec.template.containers[name=b].resizePolicy"]


def test_changed_field_is_not_a_dropped_field() -> None:
    """A field with another value is reported separately."""
    losses = list(lost_fields({"spec": {"replicas": 2}}, {"spec": {"replicas": 5}}))

    assert [(one.path, one.asked, one.found, one.dropped) for one in losses] == [("spec.replicas", 2, 5, False)]


@pytest.mark.parametrize("empty", [None, "", 0, False, [], {}])
def test_empty_field_may_be_missing(empty: Any) -> None:
    """Servers omit empty fields."""
    assert list(lost_fields({"spec": {"x": empty}}, {"spec": {}})) == []


def test_a_list_of_plain_values_is_compared_in_order() -> None:
    """A missing last argument is dropped, one in between is changed."""
    assert [(one.path, one.dropped) for one in lost_fields({"args": ["a", "b", "c"]}, {"args": ["a", "x"]})] == [
        ("args[1]", False),
        ("args[2]", True),
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1000m", "1", True),
        (1, "1", True),
        ("1Gi", "1024Mi", True),
        ("1G", "1Gi", False),
        ("a", "b", False),
        (True, 1, False),
        (True, True, True),
    ],
)
def test_equal_values_in_other_forms_are_equal(one: Any, other: Any, *, same: bool) -> None:
    """Quantities in another unit and numbers as strings are equal; a boolean is no number."""
    assert same_value(one, other) is same


def test_string_data_equals_its_base64() -> None:
    """The stringData of a Secret is compared with the base64 in data."""
    assert written({**SECRET, "stringData": {"k": "value"}})["data"] == {"k": "dmFsdWU="}


def test_difference_hides_only_secrets() -> None:
    """For a Secret the difference shows only that a value changed; other values are complete."""
    secret = difference({**SECRET, "data": {"k": "b2xk"}}, {**SECRET, "data": {"k": "bmV3"}})
    plain = difference(
        {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "old"}},
        {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "new"}},
    )

    assert "b2xk" not in secret
    assert "bmV3" not in secret
    assert secret.count("(secret, ") == 2
    assert "-  k: old" in plain
    assert "+  k: new" in plain


def test_server_managed_fields_are_no_difference() -> None:
    """Status, versions and managed fields are ignored."""
    live = {"kind": "X", "metadata": {"name": "c", "resourceVersion": "7", "managedFields": []}, "spec": {"a": 1}, "status": {"b": 2}}

    assert difference(live, {"kind": "X", "metadata": {"name": "c"}, "spec": {"a": 1}}) == ""


def deployment(**status: int) -> dict[str, Any]:
    """Return a Deployment of two pods with this status."""
    return {"kind": "Deployment", "metadata": {"name": "d", "generation": 3}, "spec": {"replicas": 2}, "status": status}


@pytest.mark.parametrize(
    ("obj", "fits"),
    [
        (deployment(observedGeneration=3, readyReplicas=2, updatedReplicas=2), True),
        (deployment(observedGeneration=2, readyReplicas=2, updatedReplicas=2), False),
        (deployment(observedGeneration=3, readyReplicas=2, updatedReplicas=1), False),
        (deployment(observedGeneration=3, readyReplicas=1, updatedReplicas=2), False),
        ({"kind": "DaemonSet", "metadata": {"generation": 1}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 0}}, True),
        (None, False),
    ],
)
def test_rollout_is_complete_when_all_pods_are_current(obj: dict[str, Any] | None, *, fits: bool) -> None:
    """Pods of an earlier revision and an outdated status do not count."""
    assert meets(obj, {"condition": "rollout"})[0] is fits


@pytest.mark.parametrize(("away", "new", "fits"), [(0, 2, False), (1, 2, True), (1, 1, False)])
def test_daemonset_does_not_wait_for_dead_nodes(away: int, new: int, *, fits: bool) -> None:
    """Pods on the other nodes must be ready and current."""
    status = {"observedGeneration": 1, "desiredNumberScheduled": 3, "numberReady": 2, "updatedNumberScheduled": new}
    obj = {"kind": "DaemonSet", "metadata": {"generation": 1}, "status": status}

    assert meets(obj, {"condition": "rollout"}, away)[0] is fits


def test_a_condition_of_an_earlier_generation_does_not_count() -> None:
    """A condition from before the last change is ignored."""
    obj = {"metadata": {"generation": 2}, "status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}}

    assert meets(obj, {"condition": "Ready"}) == (False, "Ready is of generation 1, and the object is at 2")


def test_a_field_can_be_waited_for() -> None:
    """A path with dots must have a value, or exist."""
    claim = {"status": {"phase": "Bound"}}

    assert meets(claim, {"field": "status.phase", "value": "Bound"})[0]
    assert not meets(claim, {"field": "status.phase", "value": "Lost"})[0]
    assert meets(claim, {"field": "status.phase"})[0]
    assert meets(claim, {"field": "status.other"}) == (False, "status.other is None")


def test_title_has_kind_namespace_and_name() -> None:
    """Messages name an object like kubectl."""
    assert title(SECRET) == "Secret n/s"
