"""What labels and taints a Node is to have by the inventory, what is changed for it, and that others' stay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.kubernetes import node_labels as rules
from primus_bootstrap.kubernetes.node_label_run import bring, wishes_of
from tests.unit.kube_nodes_rig import FakeApi, node

HOST = {
    "rack": "rack 01",
    "slurm_switch": "leaf7",
    "gpu_env_model": "MI300X",
    "node_labels": {"example.com/pool": "gpu", "example.com/gpus": 8},
    "node_taints": ["gpu=yes:NoSchedule"],
}
WISHES = wishes_of({"gpu1": HOST})


def test_a_hosts_variables_become_labels_and_taints() -> None:
    """Rack, switch and model become ours, in letters that a label takes; Kubespray's own variables stay as they are written."""
    wish = WISHES["gpu1"]

    assert dict(wish.labels) == {
        "primus-bootstrap.io/rack": "rack-01",
        "primus-bootstrap.io/switch": "leaf7",
        "primus-bootstrap.io/gpu-model": "MI300X",
        "example.com/pool": "gpu",
        "example.com/gpus": "8",
    }
    assert wish.taints == (("gpu", "yes", "NoSchedule"),)


def test_the_nodes_own_name_counts() -> None:
    """Where Kubespray names a Node otherwise than its host, that Node is meant."""
    assert list(wishes_of({"gpu1": {"kube_override_hostname": "gpu1.site"}})) == ["gpu1.site"]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"node_taints": ["gpu=yes"]}, "gpu1: node_taints: gpu=yes is no taint"),
        ({"node_taints": ["gpu=yes:Never"]}, "one of NoSchedule, PreferNoSchedule, NoExecute"),
        ({"node_labels": {"a b": "c"}}, "gpu1: node_labels: a b is no label"),
        ({"node_labels": {"a": "x" * 64}}, "its value has 64 characters, at most 63"),
        ({"node_labels": {"example.com/big": True}}, "example.com/big: the value of a label is a text, found true or false"),
        ({"node_labels": {"kubernetes.io/arch": "amd64"}}, "belongs to Kubernetes' own components"),
        ({"node_labels": ["a=b"]}, "node_labels is no mapping"),
        ({"node_taints": ["a=b:NoSchedule", "a", "b"]}, "a is no taint: it has no effect.*b is no taint"),
    ],
)
def test_what_no_server_takes_is_refused_before_anything_is_changed(variables: dict[str, object], says: str) -> None:
    """A taint without an effect, or a label with a blank, is named with its host."""
    with pytest.raises(PlanError, match="(?s)" + says):
        wishes_of({"gpu1": variables})


def test_the_second_time_changes_nothing() -> None:
    """Labels are applied and taints patched once; the same again, and a dry run, send nothing."""
    api = FakeApi(node())

    assert bring(api, WISHES, dry_run=True).changed == ("gpu1",)
    assert api.calls == []
    assert bring(api, WISHES).changed == ("gpu1",)
    assert api.calls == ["apply gpu1", "patch gpu1"]
    assert bring(api, WISHES).changed == ()
    assert len(api.calls) == 2


def test_what_others_set_stays_and_what_is_no_longer_stated_goes() -> None:
    """A foreign label and taint outlive both; ours go with the inventory's word, also where Kubespray's kubectl set the label as well."""
    foreign = {"key": "node.kubernetes.io/disk", "effect": "NoSchedule"}
    before = node(taints=[foreign])
    before["metadata"]["labels"] = {"theirs": "x", "example.com/pool": "gpu"}
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {"f:example.com/pool": {}}}}
    before["metadata"]["managedFields"] = [{"manager": "kubectl-label", "operation": "Update", "fieldsV1": fields}]
    api = FakeApi(before)

    bring(api, WISHES)
    assert api.nodes["gpu1"]["spec"]["taints"] == [foreign, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    bring(api, wishes_of({"gpu1": {"rack": "rack02"}}))

    assert api.nodes["gpu1"]["metadata"]["labels"] == {"theirs": "x", "primus-bootstrap.io/rack": "rack02"}
    assert api.nodes["gpu1"]["spec"]["taints"] == [foreign]
    assert rules.TAINTS not in api.nodes["gpu1"]["metadata"]["annotations"]


def test_a_label_of_somebody_else_is_not_taken_off() -> None:
    """A label that another controller has set as well stays when the inventory drops it."""
    before = node()
    before["metadata"]["labels"] = {"example.com/pool": "gpu"}
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {"f:example.com/pool": {}}}}
    before["metadata"]["managedFields"] = [{"manager": "nfd-master", "operation": "Apply", "fieldsV1": fields}]
    api = FakeApi(before)

    bring(api, WISHES)
    bring(api, wishes_of({"gpu1": {}}))

    assert api.nodes["gpu1"]["metadata"]["labels"] == {"example.com/pool": "gpu"}


def test_a_taint_whose_value_changes_is_replaced() -> None:
    """Key and effect name a taint; the value in hosts.yaml wins."""
    api = FakeApi(node())
    bring(api, WISHES)
    bring(api, wishes_of({"gpu1": HOST | {"node_taints": ["gpu=no:NoSchedule"]}}))

    assert api.nodes["gpu1"]["spec"]["taints"] == [{"key": "gpu", "value": "no", "effect": "NoSchedule"}]


def test_a_host_without_a_node_is_named_and_keeps_nobody_from_its_turn() -> None:
    """gpu2 has not joined: gpu1 gets what it is to have."""
    outcome = bring(FakeApi(node()), wishes_of({"gpu1": HOST, "gpu2": HOST}))

    assert (outcome.changed, outcome.absent) == (("gpu1",), ("gpu2",))


def test_somebody_who_changes_the_node_meanwhile_is_not_overwritten() -> None:
    """A conflict is answered with the Node as it is by then: the other's taint stays beside ours."""
    api = FakeApi(node())
    other = {"key": "theirs", "effect": "NoExecute"}

    def meddle() -> None:
        if api.calls == ["apply gpu1"] and not api.nodes["gpu1"]["spec"].get("taints"):
            api.nodes["gpu1"]["spec"]["taints"] = [other]
            api.nodes["gpu1"]["metadata"]["resourceVersion"] = "9"

    api.before_patch = meddle
    bring(api, WISHES)

    assert [taint["key"] for taint in api.nodes["gpu1"]["spec"]["taints"]] == ["theirs", "gpu"]


def test_a_server_that_drops_a_field_is_named() -> None:
    """What was taken with 200 and is not there afterwards is a failure, with what is missing."""
    api = FakeApi(node())
    real = api.patch

    def forgetful(path: str, body: dict[str, object], **words: object) -> dict[str, object]:
        answer = real(path, body, **words)  # type: ignore[arg-type]
        answer["metadata"].pop("labels", None)
        return answer

    api.patch = forgetful  # type: ignore[assignment,method-assign]
    with pytest.raises(RunError, match=r"gpu1 lacks label example\.com/gpus=8"):
        bring(api, {"gpu1": rules.DesiredNode(WISHES["gpu1"].labels, ())})


def test_the_difference_shows_before_and_after() -> None:
    """`--diff` shows the labels that are ours, and all taints."""
    ((before, after),) = bring(FakeApi(node()), WISHES, dry_run=True, differences=True).differences

    assert before == {"name": "gpu1", "labels": {}, "taints": []}
    assert after["labels"]["primus-bootstrap.io/rack"] == "rack-01"
    assert after["taints"] == ["gpu=yes:NoSchedule"]
    assert json.dumps(after)
