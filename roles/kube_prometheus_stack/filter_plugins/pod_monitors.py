# ruff: noqa: INP001 (Ansible loads it by path)
"""Compute PodMonitor objects from the variable kube_prometheus_stack_monitors. Only a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def pod_monitors(monitors: Iterable[Mapping[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Return a PodMonitor for each entry, all in one namespace, so that they cannot overwrite objects of another chart."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": {"name": f"primus-{one['name']}", "namespace": namespace},
            "spec": {
                "namespaceSelector": {"matchNames": [one["namespace"]]},
                "selector": {"matchLabels": dict(one["labels"])},
                "podMetricsEndpoints": [{"port": one["port"], "path": one.get("path") or "/metrics"}],
            },
        }
        for one in monitors
    ]


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"pod_monitors": pod_monitors}
