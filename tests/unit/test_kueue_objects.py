"""Role kueue: Kubernetes objects generated for queues, and immutable fields."""

from __future__ import annotations

import copy

import pytest

from tests.unit.kueue_rig import plugin, stated

objects = plugin("kueue", "kueue_objects")


@pytest.mark.parametrize(
    ("written", "canonical"),
    [(0, "0"), (64, "64"), (1000, "1k"), (1500, "1500"), ("8192Gi", "8Ti"), ("1.5Ti", "1536Gi"), ("1025Ki", "1025Ki"), ("0.5", "500m")],
)
def test_quantity_has_the_canonical_form(written: object, canonical: str) -> None:
    """A webhook normalizes quantities; another form would be a change at every run."""
    assert objects.canonical(written) == canonical


def test_referenced_objects_come_first() -> None:
    """Every object has our label, and the node is the lowest level of the topology."""
    found = objects.kueue_objects(stated())
    kinds = ["Topology", "ResourceFlavor", "ClusterQueue", "WorkloadPriorityClass", "LocalQueue"]
    topology, flavor, queue, priority, local = found

    assert [one["kind"] for one in found] == kinds
    assert {one["metadata"]["labels"]["app.kubernetes.io/managed-by"] for one in found} == {"primus-bootstrap"}
    assert topology["spec"]["levels"] == [{"nodeLabel": "example.com/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    assert flavor["spec"] == {"nodeLabels": {"example.com/model": "MI300X"}, "topologyName": "default"}
    assert queue["spec"]["cohortName"] == "cluster"
    assert queue["spec"]["namespaceSelector"] == {}
    assert queue["spec"]["resourceGroups"] == [
        {
            "coveredResources": ["amd.com/gpu", "memory"],
            "flavors": [
                {"name": "mi300x", "resources": [{"name": "amd.com/gpu", "nominalQuota": "64"}, {"name": "memory", "nominalQuota": "8Ti"}]}
            ],
        }
    ]
    assert (priority["value"], local["metadata"]["namespace"]) == (1000, "team-a")
    assert local["spec"] == {"clusterQueue": "training", "stopPolicy": "None"}


def test_flavors_with_the_same_resources_share_a_group() -> None:
    """They are alternatives; other flavors have their own group."""
    quotas = [
        {"flavor": "mi300x", "resources": {"amd.com/gpu": 64}, "borrowing_limits": {"amd.com/gpu": 8}},
        {"flavor": "mi325x", "resources": {"amd.com/gpu": 8}},
        {"flavor": "h200", "resources": {"nvidia.com/gpu": 16}},
    ]

    groups = objects.resource_groups(quotas)

    assert [(one["coveredResources"], [flavor["name"] for flavor in one["flavors"]]) for one in groups] == [
        (["amd.com/gpu"], ["mi300x", "mi325x"]),
        (["nvidia.com/gpu"], ["h200"]),
    ]
    assert groups[0]["flavors"][0]["resources"] == [{"name": "amd.com/gpu", "nominalQuota": "64", "borrowingLimit": "8"}]


def test_without_levels_there_is_no_topology() -> None:
    """Flavors name none then."""
    found = objects.kueue_objects(stated(kueue_topology_levels=[]))

    assert [one["kind"] for one in found][:1] == ["ResourceFlavor"]
    assert "topologyName" not in found[0]["spec"]


def test_each_namespace_is_created_once() -> None:
    """Two queues may share a namespace."""
    queues = [{"namespace": "a"}, {"namespace": "b"}, {"namespace": "a"}]

    assert [one["metadata"]["name"] for one in objects.kueue_namespaces(queues)] == ["a", "b"]


def test_change_of_an_immutable_field_is_refused() -> None:
    """Another rack label of an existing topology gets a fix. Equal and new objects are accepted."""
    wanted = objects.kueue_objects(stated())
    live = copy.deepcopy(wanted)
    live[0]["spec"]["levels"][0]["nodeLabel"] = "example.com/row"
    live[4]["spec"]["clusterQueue"] = "former"

    found = objects.kueue_immutable_changes(wanted, live)

    assert objects.kueue_immutable_changes(wanted, copy.deepcopy(wanted)) == []
    assert objects.kueue_immutable_changes(wanted, []) == []
    assert [line.split(":")[0] for line in found] == ["Topology default", "LocalQueue main"]
    assert "kubectl delete localqueue main -n team-a" in found[1]


def test_flavor_is_immutable_only_with_a_topology() -> None:
    """Without one, labels can change and a topology can be added."""
    wanted = objects.kueue_objects(stated())[1:2]
    live = copy.deepcopy(wanted)
    live[0]["spec"] = {"nodeLabels": {"other": "x"}}

    assert objects.kueue_immutable_changes(wanted, live) == []

    live[0]["spec"]["topologyName"] = "default"

    assert len(objects.kueue_immutable_changes(wanted, live)) == 1
