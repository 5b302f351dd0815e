"""Test the desired labels and taints of Nodes, the changes, and that those of others stay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.kubernetes import node_labels as rules
from primus_bootstrap.kubernetes.node_label_run import desired_nodes, update_nodes
from tests.unit.kube_nodes_rig import FakeApi, node

HOST = {
    "rack": "rack 01",
    "slurm_switch": "leaf7",
    "gpu_env_model": "MI300X",
    "node_labels": {"example.com/pool": "gpu", "example.com/gpus": 8},
    "node_taints": ["gpu=yes:NoSchedule"],
}
WISHES = desired_nodes({"gpu1": HOST})


def test_variables_become_labels_and_taints() -> None:
    """Rack, switch and model become labels with valid characters; node_labels and node_taints stay unchanged."""
    wish = WISHES["gpu1"]

    assert dict(wish.labels) == {
        "primus-bootstrap.io/rack": "rack-01",
        "primus-bootstrap.io/switch": "leaf7",
        "primus-bootstrap.io/gpu-model": "MI300X",
        "example.com/pool": "gpu",
        "example.com/gpus": "8",
    }
    assert wish.taints == (("gpu", "yes", "NoSchedule"),)


def test_name_of_the_node_may_differ() -> None:
    """kube_override_hostname names the Node."""
    assert list(desired_nodes({"gpu1": {"kube_override_hostname": "gpu1.site"}})) == ["gpu1.site"]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"node_taints": ["gpu=yes"]}, "gpu1: node_taints: gpu=yes is not a valid taint"),
        ({"node_taints": ["gpu=yes:Never"]}, "one of NoSchedule, PreferNoSchedule, NoExecute"),
        ({"node_labels": {"a b": "c"}}, "gpu1: node_labels: a b is not a valid label"),
        ({"node_labels": {"a": "x" * 64}}, "its value has 64 characters, at most 63"),
        ({"node_labels": {"example.com/big": True}}, "example.com/big: the value of a label must be a string, found a boolean"),
        ({"node_labels": {"kubernetes.io/arch": "amd64"}}, "the prefix is reserved for Kubernetes"),
        ({"node_labels": ["a=b"]}, "node_labels is not a mapping"),
        ({"node_taints": ["a=b:NoSchedule", "a", "b"]}, "a is not a valid taint: it has no effect.*b is not a valid taint"),
    ],
)
def test_invalid_label_or_taint_is_refused(variables: dict[str, object], says: str) -> None:
    """The error names the host and the invalid label or taint."""
    with pytest.raises(PlanError, match="(?s)" + says):
        desired_nodes({"gpu1": variables})


def test_second_run_changes_nothing() -> None:
    """A second run and a dry run send no request."""
    api = FakeApi(node())

    assert update_nodes(api, WISHES, dry_run=True).changed == ("gpu1",)
    assert api.calls == []
    assert update_nodes(api, WISHES).changed == ("gpu1",)
    assert api.calls == ["apply gpu1", "patch gpu1"]
    assert update_nodes(api, WISHES).changed == ()
    assert len(api.calls) == 2


def test_labels_and_taints_of_others_stay() -> None:
    """Those of others stay; the project's are removed with their variables, also if Kubespray's kubectl set the label."""
    foreign = {"key": "node.kubernetes.io/disk", "effect": "NoSchedule"}
    before = node(taints=[foreign])
    before["metadata"]["labels"] = {"theirs": "x", "example.com/pool": "gpu"}
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {"f:example.com/pool": {}}}}
    before["metadata"]["managedFields"] = [{"manager": "kubectl-label", "operation": "Update", "fieldsV1": fields}]
    api = FakeApi(before)

    update_nodes(api, WISHES)
    assert api.nodes["gpu1"]["spec"]["taints"] == [foreign, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    update_nodes(api, desired_nodes({"gpu1": {"rack": "rack02"}}))

    assert api.nodes["gpu1"]["metadata"]["labels"] == {"theirs": "x", "primus-bootstrap.io/rack": "rack02"}
    assert api.nodes["gpu1"]["spec"]["taints"] == [foreign]
    assert rules.TAINTS not in api.nodes["gpu1"]["metadata"]["annotations"]


def test_shared_label_stays() -> None:
    """A label that another controller also set stays after the inventory drops it."""
    before = node()
    before["metadata"]["labels"] = {"example.com/pool": "gpu"}
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {"f:example.com/pool": {}}}}
    before["metadata"]["managedFields"] = [{"manager": "nfd-master", "operation": "Apply", "fieldsV1": fields}]
    api = FakeApi(before)

    update_nodes(api, WISHES)
    update_nodes(api, desired_nodes({"gpu1": {}}))

    assert api.nodes["gpu1"]["metadata"]["labels"] == {"example.com/pool": "gpu"}


def test_changed_taint_is_replaced() -> None:
    """The value in hosts.yaml replaces that of the same key and effect."""
    api = FakeApi(node())
    update_nodes(api, WISHES)
    update_nodes(api, desired_nodes({"gpu1": HOST | {"node_taints": ["gpu=no:NoSchedule"]}}))

    assert api.nodes["gpu1"]["spec"]["taints"] == [{"key": "gpu", "value": "no", "effect": "NoSchedule"}]


def test_host_without_a_node_is_reported() -> None:
    """gpu2 has no Node; gpu1 is updated."""
    outcome = update_nodes(FakeApi(node()), desired_nodes({"gpu1": HOST, "gpu2": HOST}))

    assert (outcome.changed, outcome.absent) == (("gpu1",), ("gpu2",))


def test_conflict_is_retried() -> None:
    """After a conflict the Node is read again, and the taint of another client stays."""
    api = FakeApi(node())
    other = {"key": "theirs", "effect": "NoExecute"}

    def meddle() -> None:
        if api.calls == ["apply gpu1"] and not api.nodes["gpu1"]["spec"].get("taints"):
            api.nodes["gpu1"]["spec"]["taints"] = [other]
            api.nodes["gpu1"]["metadata"]["resourceVersion"] = "9"

    api.before_patch = meddle
    update_nodes(api, WISHES)

    assert [taint["key"] for taint in api.nodes["gpu1"]["spec"]["taints"]] == ["theirs", "gpu"]


def test_dropped_field_is_an_error() -> None:
    """The error names a label that the server accepted and did not store."""
    api = FakeApi(node())
    real = api.patch

    def forgetful(path: str, body: dict[str, object], **words: object) -> dict[str, object]:
        answer = real(path, body, **words)  # type: ignore[arg-type]
        answer["metadata"].pop("labels", None)
        return answer

    api.patch = forgetful  # type: ignore[assignment,method-assign]
    with pytest.raises(RunError, match=r"gpu1 lacks label example\.com/gpus=8"):
        update_nodes(api, {"gpu1": rules.DesiredNode(WISHES["gpu1"].labels, ())})


def test_difference_has_before_and_after() -> None:
    """`--diff` shows the project's labels and all taints."""
    ((before, after),) = update_nodes(FakeApi(node()), WISHES, dry_run=True, differences=True).differences

    assert before == {"name": "gpu1", "labels": {}, "taints": []}
    assert after["labels"]["primus-bootstrap.io/rack"] == "rack-01"
    assert after["taints"] == ["gpu=yes:NoSchedule"]
    assert json.dumps(after)
