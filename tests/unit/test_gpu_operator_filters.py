"""Role `gpu_operator`: the operator for each GPU model, refused settings, and GPUs of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap import launch
from tests.unit.kueue_rig import plugin

filters = plugin("gpu_operator", "gpu_operator")


def test_every_model_has_its_vendor() -> None:
    """The models equal those of the profiles; unknown models are not supported."""
    data = yaml.safe_load((Path(launch.__path__[0]) / "data" / "gpus.yml").read_text(encoding="utf-8"))
    known = {model: facts["vendor"] for model, facts in data["models"].items()}

    assert {model: filters.vendor_of(model) for model in known} == known
    assert sum(len(models) for models in filters.VENDORS.values()) == len(known)
    assert all(set(filters.SUPPORTED[vendor]) <= set(models) for vendor, models in filters.VENDORS.items())
    assert filters.vendor_of("auto") == ""


@pytest.mark.parametrize(
    ("stated", "models", "rule", "says"),
    [
        ({}, {"n1": "MI300A", "n2": "MI308X"}, "gpu-operator-model", "does not support MI300A, MI308X of n1, n2"),
        ({}, {"n1": "auto"}, "gpu-operator-model", "gpu_env_model is not set for n1"),
        ({}, {}, "gpu-operator-nodes", "no host of gpu_node is a node of Kubernetes"),
        ({"node_feature_discovery_enabled": True}, {"n1": "H200"}, "gpu-operator-nfd", "a second one"),
    ],
)
def test_unsupported_settings_are_refused(stated: dict[str, Any], models: dict[str, str], rule: str, says: str) -> None:
    """An unsupported or missing model, and a second NFD, get a fix."""
    found = filters.findings(stated, models)

    assert [one[3] for one in found] == [rule]
    assert says in found[0][1]
    assert found[0][2]


@pytest.mark.parametrize(
    ("stated", "models"),
    [
        ({}, {"n1": "MI300X", "n2": "H200"}),
        ({"gpu_operator_mode": "device_plugin"}, {"n1": "MI300A"}),
        ({"gpu_operator_vendors": ["amd"]}, {"n1": "auto"}),
        ({"gpu_operator_nfd": False, "node_feature_discovery_enabled": True}, {"n1": "MI300X"}),
        ({"gpu_operator_mode": "device_plugin", "node_feature_discovery_enabled": True}, {"n1": "MI300X"}),
    ],
)
def test_supported_settings_are_accepted(stated: dict[str, Any], models: dict[str, str]) -> None:
    """Both vendors in one cluster, the device plug-in alone for any model, and an existing NFD."""
    assert filters.findings(stated, models) == []


def test_nodes_are_read_from_the_inventory() -> None:
    """Without a model a host is auto, without a number of GPUs it has 0."""
    stated = {"a": {"gpu_env_model": "H200", "gpu_env_count": 8}, "b": {"kube_override_hostname": "b.site"}}

    found = filters.gpu_operator_nodes(["a", "b"], stated)

    assert found == [{"host": "a", "node": "a", "model": "H200", "count": 8}, {"host": "b", "node": "b.site", "model": "auto", "count": 0}]
    assert filters.gpu_operator_vendors(found) == ["nvidia"]


def kubelet(name: str, gpus: str | None, ready: str = "True") -> dict[str, Any]:
    """Return a node as the API server returns it."""
    said = {} if gpus is None else {"amd.com/gpu": gpus}
    return {"metadata": {"name": name}, "status": {"allocatable": said, "conditions": [{"type": "Ready", "status": ready}]}}


def test_each_node_must_have_its_gpus() -> None:
    """Enough GPUs pass, too few fail. No answer, an unready and a missing node are unknown."""
    wanted = [{"host": name, "node": f"{name}.site", "model": "MI300X", "count": 8} for name in ("a", "b", "c", "d", "e")]
    live = [kubelet("a.site", "8"), kubelet("b.site", "7"), kubelet("c.site", None), kubelet("d.site", "8", "Unknown")]

    found = filters.gpu_operator_verdicts(wanted, live)

    assert [(one["host"], one["verdict"]) for one in found] == [
        ("a", "pass"),
        ("b", "fail"),
        ("c", "unknown"),
        ("d", "unknown"),
        ("e", "unknown"),
    ]
    assert {one["verdict"] for one in filters.gpu_operator_verdicts(wanted, None)} == {"unknown"}
    assert filters.gpu_operator_verdicts([{"host": "a", "node": "a.site", "model": "MI300X", "count": 0}], live)[0]["verdict"] == "pass"


def test_status_of_the_operator_decides() -> None:
    """ClusterPolicy must be ready, DeviceConfig must have every pod. No status is unknown, a missing object fails."""
    policy = {"kind": "ClusterPolicy", "status": {"state": "ready"}}
    config = {"kind": "DeviceConfig", "status": {"devicePlugin": {"availableNumber": 7, "desiredNumber": 8}}}

    def words(objects: list[dict[str, Any]] | None, *vendors: str) -> list[str]:
        return [one["verdict"] for one in filters.gpu_operator_state(objects, vendors, "cp1")]

    assert words([policy, config], "amd", "nvidia") == ["fail", "pass"]
    assert words([{**config, "status": {"devicePlugin": {"availableNumber": 8, "desiredNumber": 8}}}], "amd") == ["pass"]
    assert words([{"kind": "DeviceConfig"}], "amd") == ["unknown"]
    assert words([], "nvidia") == ["fail"]
    assert words(None, "nvidia") == ["unknown"]


def test_foreign_nfd_is_detected() -> None:
    """A Node Feature Discovery of another Helm release is reported."""
    masters = [
        {"metadata": {"namespace": "a", "name": "nfd-master", "labels": {"app.kubernetes.io/instance": "gpu-operator"}}},
        {"metadata": {"namespace": "b", "name": "nfd-master", "labels": {}}},
    ]

    assert filters.gpu_operator_foreign_nfd(masters, ["gpu-operator"]) == ["b/nfd-master"]


def test_device_plugin_runs_on_nodes_of_its_vendor() -> None:
    """Each vendor has a namespace and a DaemonSet for its models, with the configured tolerations."""
    settings = {
        "namespaces": {"amd": "kube-amd-gpu", "nvidia": "gpu-operator"},
        "images": {"amd": "rocm/k8s-device-plugin:1", "nvidia": "nvidia/k8s-device-plugin:v1"},
        "model_label": "example.com/model",
        "tolerations": [{"operator": "Exists"}],
    }

    namespace, amd, _, runtime, nvidia = filters.gpu_operator_plugins(["amd", "nvidia"], settings)
    pod = amd["spec"]["template"]["spec"]
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert (namespace["metadata"]["name"], amd["metadata"]["namespace"]) == ("kube-amd-gpu", "kube-amd-gpu")
    assert "MI300A" in term["matchExpressions"][0]["values"]
    assert [one["hostPath"]["path"] for one in pod["volumes"]] == ["/var/lib/kubelet/device-plugins", "/sys"]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert nvidia["spec"]["template"]["spec"]["runtimeClassName"] == runtime["metadata"]["name"] == "nvidia"
    assert nvidia["spec"]["template"]["spec"]["containers"][0]["image"] == "nvidia/k8s-device-plugin:v1"
