"""Queues for the tests of the role kueue."""

from __future__ import annotations

from typing import Any

from primus_bootstrap import content
from tests.unit.role_module import load_file


def plugin(role: str, name: str) -> Any:
    """Return a filter plug-in of a role."""
    return load_file(content.roles_dir() / role / "filter_plugins" / f"{name}.py", f"tested_{name}")


def stated(**changed: Any) -> dict[str, Any]:
    """Return the variables of a cluster of eight MI300X nodes in two racks, with changes."""
    queue = {
        "name": "training",
        "cohort": "cluster",
        "quotas": [{"flavor": "mi300x", "resources": {"amd.com/gpu": 64, "memory": "8192Gi"}}],
    }
    return {
        "kueue_topology_name": "default",
        "kueue_topology_levels": ["example.com/rack"],
        "kueue_model_label": "example.com/model",
        "kueue_flavors": [{"name": "mi300x", "model": "MI300X"}],
        "kueue_cohorts": [],
        "kueue_cluster_queues": [queue],
        "kueue_local_queues": [{"name": "main", "namespace": "team-a", "cluster_queue": "training"}],
        "kueue_priorities": [{"name": "high", "value": 1000}],
        "kueue_fair_sharing": False,
    } | changed


def node(name: str, gpus: str | None = "8", **labels: str) -> dict[str, Any]:
    """Return a node of eight MI300X in rack r1; labels are added with `_` for the prefix example.com/."""
    marks = {"example.com/model": "MI300X", "example.com/rack": "r1", "kubernetes.io/hostname": name}
    marks |= {f"example.com/{key}": value for key, value in labels.items()}
    status = {"allocatable": {"memory": "1Ti", **({"amd.com/gpu": gpus} if gpus is not None else {})}}
    return {"metadata": {"name": name, "labels": {key: value for key, value in marks.items() if value}}, "status": status}
