# ruff: noqa: INP001 (Ansible loads it by path)
"""Filter that converts the runtimes in hosts.yaml to objects of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def trainer_runtime(runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object for an entry of trainer_runtimes: torch, one replicated job named `node`, shared memory for the collectives.

    Trainer finds the job and the container by these names and by the label of the step (v2.3.0, documentation of ClusterTrainingRuntime).
    """
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{runtime.get('shm_gib') or 64}Gi"}}
    more, pod = dict(runtime.get("container") or {}), dict(runtime.get("pod_spec") or {})
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, *more.pop("volumeMounts", [])]  # noqa: S108 - the path that collectives use
    container = {"name": "node", "image": runtime["image"], "volumeMounts": mounts, **more}
    spec = {**pod, "containers": [container], "volumes": [shm, *pod.get("volumes", [])]}
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"name": "node", "template": {"metadata": {"labels": step}, "spec": {"template": {"spec": spec}}}}
    labels = {"app.kubernetes.io/managed-by": "primus-bootstrap", "trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": runtime["name"], "labels": labels},
        "spec": {"mlPolicy": {"numNodes": runtime.get("nodes") or 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [job]}}},
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"trainer_runtime": trainer_runtime}
