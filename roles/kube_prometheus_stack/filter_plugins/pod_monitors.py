# ruff: noqa: INP001 (Ansible loads it by path)
"""PodMonitors from what playbooks and a site state of pods whose numbers are fetched: a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def pod_monitors(stated: Iterable[Mapping[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Return a PodMonitor for each; they stand in one namespace, so that none of a chart's own can be overwritten."""
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
        for one in stated
    ]


class FilterModule:
    """What Ansible loads."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"pod_monitors": pod_monitors}
