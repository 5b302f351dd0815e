"""Create a cluster with queues: a small chart with Kueue's kinds replaces Kueue, and an inventory defines queues."""

from __future__ import annotations

import copy
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = "kueue.x-k8s.io"
NAMESPACED = ("LocalQueue", "Workload")
PLURALS = {
    "Topology": "topologies",
    "ResourceFlavor": "resourceflavors",
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "Workload": "workloads",
}
CHARTS = os.environ.get("PRIMUS_CHARTS_DIR", "")
# What Kubernetes 1.20 does not know in a definition, or needs a webhook for.
_UNKNOWN = ("x-kubernetes-validations", "conversion", "selectableFields")
_HELM = Path(__file__).parent / "helm"
_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: kueue-controller-manager, namespace: "{{ .Release.Namespace }}"}
spec:
  replicas: {{ .Values.controllerManager.replicas }}
  selector: {matchLabels: {app: kueue}}
  template:
    metadata: {labels: {app: kueue}}
    spec:
      containers:
      - name: manager
        image: "{{ .Values.controllerManager.manager.image.repository }}:{{ .Values.controllerManager.manager.image.tag }}"
"""
STATED: dict[str, Any] = {
    "cluster_name": "queues",
    "kubernetes_provider": "existing",
    "gpu_env_model": "MI300X",
    "gpu_env_count": 8,
    "kueue_chart_file": "chart",
    "kueue_topology_levels": ["primus-bootstrap.io/rack"],
    "kueue_flavors": [{"name": "mi300x", "model": "MI300X", "tolerations": [{"key": "amd.com/gpu", "operator": "Exists"}]}],
    "kueue_cohorts": [{"name": "cluster"}],
    "kueue_cluster_queues": [
        {
            "name": "training",
            "cohort": "cluster",
            "namespaces": ["team-a"],
            "quotas": [{"flavor": "mi300x", "resources": {"amd.com/gpu": 12}, "borrowing_limits": {"amd.com/gpu": 4}}],
        },
        {"name": "small", "cohort": "cluster", "quotas": [{"flavor": "mi300x", "resources": {"amd.com/gpu": 4}}]},
    ],
    "kueue_local_queues": [{"name": "main", "namespace": "team-a", "cluster_queue": "training"}],
    "kueue_priorities": [{"name": "high", "value": 1000, "description": "soon"}],
}


def definition(kind: str) -> dict[str, Any]:
    """Return a definition of one of Kueue's kinds that accepts every field."""
    free = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": PLURALS[kind], "singular": kind.lower()}
    version = {"name": "v1beta2", "served": True, "storage": True, "schema": free, "subresources": {"status": {}}}
    spec = {"group": GROUP, "names": names, "scope": "Namespaced" if kind in NAMESPACED else "Cluster", "versions": [version]}
    name = f"{PLURALS[kind]}.{GROUP}"
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}, "spec": spec}


def real_definition(kind: str) -> dict[str, Any]:
    """Return Kueue's definition from the chart in PRIMUS_CHARTS_DIR, without features that Kubernetes 1.20 lacks."""
    rendered = subprocess.run([_HELM, "template", "kueue", f"{CHARTS}/kueue"], capture_output=True, text=True, check=True).stdout
    name = f"{PLURALS[kind]}.{GROUP}"
    found = next(one for one in yaml.safe_load_all(rendered) if one and one["metadata"]["name"] == name)
    return {**_less(found), "metadata": {"name": name}}


def _less(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _less(inner) for key, inner in value.items() if key not in _UNKNOWN and not (key == "default" and inner == "")}
    return [_less(inner) for inner in value] if isinstance(value, list) else value


def write(folder: Path, kubeconfig: Path, definitions: list[dict[str, Any]], **changed: Any) -> None:
    """Write the chart and hosts.yaml into a folder."""
    chart = folder / "chart"
    (chart / "crds").mkdir(parents=True, exist_ok=True)
    (chart / "templates").mkdir(exist_ok=True)
    for one in definitions:
        (chart / "crds" / f"{one['metadata']['name']}.yaml").write_text(yaml.safe_dump(one))
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: kueue\nversion: 0.19.2\n")
    (chart / "values.yaml").write_text("controllerManager: {replicas: 1}\n")
    (chart / "templates" / "deployment.yaml").write_text(_DEPLOYMENT)
    gpus: Mapping[str, Any] = {"gpu1": {}, "gpu2": {}}
    control: Mapping[str, Any] = {"children": {"kube_control_plane": {}}}
    children = {
        "kube_control_plane": {"hosts": {"cp1": {}}},
        "etcd": {"hosts": {"cp1": {}}},
        "gpu_node": {"hosts": gpus},
        "kube_node": {"children": {"gpu_node": {}}},
        **{group: dict(control) for group in ("jobset", "kueue", "gpu_operator")},
    }
    variables = {**copy.deepcopy(STATED), "kubernetes_kubeconfig": str(kubeconfig), **changed}
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"vars": variables, "children": children}}))


def play(folder: Path, playbook: str, tags: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook without the check of the server's version."""
    old = "{_kueue_least_version: '1.20', _gpu_operator_least_version: '1.20', _jobset_least_version: '1.20'}"
    words = ["-e", old, *flags, *(["--tags", tags] if tags else [])]
    return run_playbook(folder / "hosts.yaml", playbook, *words, timeout_s=600, environment={"PRIMUS_HELM": str(_HELM)})
