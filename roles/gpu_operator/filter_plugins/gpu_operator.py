# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters that select the operator for a GPU model, find configuration errors, and check the GPUs of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    # Variable, problem, fix, name of the rule.
    Finding = tuple[str, str, str, str]

RESOURCES = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu"}
VENDORS = {
    "amd": ("MI100", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI308X", "MI325X", "MI350P", "MI350X", "MI355X"),
    "nvidia": (
        *("A2", "A10", "A16", "A30", "A40", "A100", "A800", "L2", "L4", "L20", "L40", "L40S", "H20", "H100", "H200", "H800", "GH200"),
        *("B100", "B200", "B300", "GB200", "GB300", "GB10", "RTX-PRO-6000"),
    ),
}
# The models that the operators support; the device plug-in alone supports all models of the driver.
# AMD: https://github.com/ROCm/gpu-operator/blob/v1.5.1/docs/index.md ("Supported Hardware"; without MI100, MI250X, MI300A and MI308X).
# NVIDIA: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/platform-support.html (data centre GPUs)
SUPPORTED = {"amd": ("MI210", "MI250", "MI300X", "MI325X", "MI350X", "MI355X"), "nvidia": VENDORS["nvidia"]}
NAMED = 8
# The variables that `findings` reads.
VARIABLES = ("gpu_operator_mode", "gpu_operator_vendors", "gpu_operator_nfd", "node_feature_discovery_enabled")


def vendor_of(model: str) -> str:
    """Return amd or nvidia; empty for an unknown model, such as `auto`."""
    return next((vendor for vendor, models in VENDORS.items() if model in models), "")


def findings(variables: Mapping[str, Any], models: Mapping[str, str]) -> list[Finding]:
    """Return configuration errors.

    Args:
        variables: The role's variables by name; a missing one has its default.
        models: Host -> GPU model, of the GPU hosts that are nodes.
    """
    found: list[Finding] = []
    mode = variables.get("gpu_operator_mode") or "operator"
    if not models:
        what = "gpu_operator is installed, and no host of gpu_node is a node of Kubernetes"
        return [("gpu_operator_mode", what, "put GPU hosts into kube_node, or empty the group gpu_operator", "gpu-operator-nodes")]
    unknown = sorted(host for host, model in models.items() if not vendor_of(model))
    if unknown and not variables.get("gpu_operator_vendors"):
        what = f"gpu_env_model is not set for {_first_names(unknown)}, and it determines the operator"
        found.append(("gpu_env_model", what, "set gpu_env_model of each GPU host, or gpu_operator_vendors", "gpu-operator-model"))
    for vendor, supported in SUPPORTED.items():
        refused = {host: model for host, model in models.items() if vendor_of(model) == vendor and model not in supported}
        if refused and mode == "operator":
            named = f"{', '.join(sorted(set(refused.values())))} of {_first_names(sorted(refused))}"
            what = f"{vendor}'s GPU operator does not support {named} (it supports {', '.join(supported)})"
            fix = "gpu_operator_mode: device_plugin, which installs only the device plug-in"
            found.append(("gpu_env_model", what, fix, "gpu-operator-model"))
    nfd = variables.get("gpu_operator_nfd")
    if mode == "operator" and nfd is not False and variables.get("node_feature_discovery_enabled") is True:
        what = "Kubespray installs Node Feature Discovery, and the GPU operator's chart a second one: their workers conflict"
        found.append(("gpu_operator_nfd", what, "gpu_operator_nfd: false, or node_feature_discovery_enabled: false", "gpu-operator-nfd"))
    return found


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def gpu_operator_findings(variables: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each error: the problem, and `Fix:`."""
    return [f"{what}. Fix: {fix}" for _, what, fix, _ in findings(variables, {one["host"]: one["model"] for one in nodes})]


def gpu_operator_nodes(hosts: Iterable[str], variables: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return Node name, model and number of GPUs (0 = unknown) of each GPU host, from hosts.yaml."""
    return [
        {
            "host": host,
            "node": str(of.get("kube_override_hostname") or host),
            "model": str(of.get("gpu_env_model", "auto")),
            "count": int(of.get("gpu_env_count", 0)),
        }
        for host, of in ((host, variables[host]) for host in hosts)
    ]


def gpu_operator_vendors(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the vendors of the nodes' models; the chart of the first one installs Node Feature Discovery."""
    return sorted({vendor for one in nodes if (vendor := vendor_of(one["model"]))})


def gpu_operator_plugins(vendors: Iterable[str], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return namespace and DaemonSet of each vendor's device plug-in, for the nodes with a label of one of its models.

    Args:
        vendors: The vendors.
        settings: `namespaces` and `images` by vendor, `model_label`, `tolerations`.
    """
    found = []
    for vendor in vendors:
        namespace = settings["namespaces"][vendor]
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        found.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
        if vendor == "nvidia":
            found.append({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"})
        found.append(_plugin(vendor, namespace, settings))
    return found


def _plugin(vendor: str, namespace: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the DaemonSet. Its socket is in kubelet's folder; AMD's plug-in reads /sys, NVIDIA's needs the runtime class."""
    name = f"{vendor}-gpu-device-plugin"
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "primus-bootstrap"}
    folders = {"kubelet": "/var/lib/kubelet/device-plugins", **({"sys": "/sys"} if vendor == "amd" else {})}
    of_models = [{"key": settings["model_label"], "operator": "In", "values": list(VENDORS[vendor])}]
    where = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": of_models}]}}
    container = {
        "name": "device-plugin",
        "image": settings["images"][vendor],
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in folders.items()],
    }
    pod = {
        "priorityClassName": "system-node-critical",
        "tolerations": [dict(one) for one in settings["tolerations"]],
        "affinity": {"nodeAffinity": where},
        "containers": [container],
        "volumes": [{"name": volume, "hostPath": {"path": path}} for volume, path in folders.items()],
    }
    if vendor == "nvidia":
        pod["runtimeClassName"] = "nvidia"
    selector = {"matchLabels": {"app.kubernetes.io/name": name}}
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    spec = {"selector": selector, "updateStrategy": update, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec,
    }


def gpu_operator_foreign_nfd(deployments: Iterable[Mapping[str, Any]], releases: Iterable[str]) -> list[str]:
    """Return the Deployments of a Node Feature Discovery that none of our releases has installed."""
    ours = set(releases)
    return [
        f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        for one in deployments
        if (one["metadata"].get("labels") or {}).get("app.kubernetes.io/instance") not in ours
    ]


def gpu_operator_verdicts(wanted: Iterable[Mapping[str, Any]], live: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return for each GPU node whether kubelet reports as many GPUs as hosts.yaml has.

    Args:
        wanted: The result of `gpu_operator_nodes`.
        live: The cluster's nodes; None if they could not be read.
    """
    statuses = {node["metadata"]["name"]: node["status"] for node in live or ()}
    return [_allocatable(one, statuses.get(one["node"]), known=live is not None) for one in wanted]


def _allocatable(one: Mapping[str, Any], status: Mapping[str, Any] | None, *, known: bool) -> dict[str, Any]:
    resource = RESOURCES.get(vendor_of(one["model"]), "")
    count = one["count"]
    record = {
        "check": "gpu_operator.allocatable",
        "host": one["host"],
        "device": resource,
        "unit": "GPUs",
        "source": "gpu_env_count in hosts.yaml",
    }
    record |= {"expected": str(count) if count else "at least 1"}
    if status is None:
        reason = "the cluster has no such node" if known else "the nodes could not be read"
        return {**record, "verdict": "unknown", "reason": reason, "fix": "kubectl get nodes"}
    reported = (status.get("allocatable") or {}).get(resource)
    ready = any(state["type"] == "Ready" and state["status"] == "True" for state in status.get("conditions") or ())
    fix = f"check `kubectl describe node {one['node']}` and the log of the device plug-in on it"
    if reported is None or not ready:
        reason = "its kubelet does not report it" if reported is None else "the node is not Ready, so its report may be old"
        return {**record, "verdict": "unknown", "found": reported or "", "reason": reason, "fix": fix}
    if int(reported) == count or (not count and int(reported) > 0):
        return {**record, "verdict": "pass", "found": reported}
    reason = "jobs that need all of the node's GPUs cannot run on it"
    return {**record, "verdict": "fail", "found": reported, "reason": reason, "fix": fix}


def gpu_operator_state(objects: Iterable[Mapping[str, Any]] | None, vendors: Iterable[str], host: str) -> list[dict[str, Any]]:
    """Return the state that each operator reports: DeviceConfig (AMD) and ClusterPolicy (NVIDIA)."""
    kinds = {"amd": "DeviceConfig", "nvidia": "ClusterPolicy"}
    existing = {one["kind"]: one for one in objects or ()}
    return [_state(kinds[vendor], existing.get(kinds[vendor]), host, known=objects is not None) for vendor in vendors]


def _state(kind: str, one: Mapping[str, Any] | None, host: str, *, known: bool) -> dict[str, Any]:
    record = {"check": "gpu_operator.state", "host": host, "device": kind, "fix": f"kubectl describe {kind.lower()} -A"}
    if one is None:
        return {**record, "verdict": "fail" if known else "unknown", "reason": "it does not exist" if known else "it could not be read"}
    status = one.get("status") or {}
    if kind == "ClusterPolicy":
        state = status.get("state") or ""
        record |= {"expected": "ready", "found": state}
        return {**record, "verdict": "pass" if state == "ready" else "fail" if state else "unknown"}
    parts = {name: status[name] for name in ("devicePlugin", "metricsExporter") if status.get(name)}
    short = [name for name, part in parts.items() if part.get("availableNumber", 0) != part.get("desiredNumber", 0)]
    record |= {"expected": "all desired pods run"}
    record |= {
        "found": ", ".join(f"{name} {part.get('availableNumber', 0)}/{part.get('desiredNumber', 0)}" for name, part in parts.items())
    }
    if "devicePlugin" not in parts:
        return {**record, "verdict": "unknown", "reason": "the operator has not reported a state yet"}
    return {**record, "verdict": "fail" if short else "pass"}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {name: value for name, value in globals().items() if name.startswith("gpu_operator_")}
