"""Test that a rollout does not wait for pods of a DaemonSet on dead nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube_nodes_rig import node, pod
from tests.unit.role_module import load_role_module

load_role_module("kube_common", "kube_reach")

from ansible.module_utils.kube_cluster import Cluster, RefusedError, wait_for  # noqa: E402 - loaded above, as Ansible does

WANTED = [{"api_version": "apps/v1", "kind": "DaemonSet", "namespace": "n", "name": "csi", "condition": "rollout"}]


class Made(Cluster):  # type: ignore[misc] # loaded by path, so that its type is not known
    """A cluster of three nodes with a pod of the DaemonSet each; nodes in `down` are not ready."""

    def __init__(self, *down: str, unready: tuple[str, ...] = (), silent: bool = False) -> None:
        """Store the names. Nodes in `unready` are ready, but their pods are not. With `silent` the server lists no nodes."""
        self.silent = silent
        self.nodes: dict[str, dict[str, Any]] = {name: node(name) for name in ("gpu1", "gpu2", "gpu3")}
        for name in down:
            self.nodes[name]["status"]["conditions"][0]["status"] = "Unknown"
        self.ill = {*down, *unready}

    def live(self, obj: dict[str, Any]) -> dict[str, Any] | None:
        """Return the DaemonSet, or a node."""
        if obj["kind"] == "Node":
            if self.silent:
                raise RefusedError("no answer")
            return self.nodes.get(obj["metadata"]["name"])
        well = len(self.nodes) - len(self.ill)
        status = {"observedGeneration": 1, "desiredNumberScheduled": 3, "numberReady": well, "updatedNumberScheduled": 3}
        return {"kind": "DaemonSet", "metadata": {"name": "csi", "generation": 1}, "status": status}

    def _pods(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        found = [pod(f"csi-{name}", "DaemonSet", on=name) for name in self.nodes]
        for one in found:
            state = "False" if one["spec"]["nodeName"] in self.ill else "True"
            one["status"]["conditions"] = [{"type": "Ready", "status": state}]
        return found


@pytest.mark.parametrize(
    ("cluster", "missing"),
    [
        (Made(), []),
        (Made("gpu2"), []),
        (Made(unready=("gpu3",)), ["2 of 3 pods ready"]),
        (Made("gpu2", unready=("gpu3",)), ["1 of 2 pods ready, 3 of the last change, not counting 1 on nodes that are not ready"]),
        (Made("gpu2", silent=True), ["2 of 3 pods ready"]),
    ],
    ids=["all well", "a node is down", "a pod does not start", "both", "nobody tells of nodes"],
)
def test_rollout_waits_only_for_ready_nodes(cluster: Made, missing: list[str]) -> None:
    """It does not wait for a dead node; it waits for a pod on a ready node, and if the nodes are unknown."""
    found = wait_for(cluster, WANTED, 0)

    assert [text in output for text, output in zip(missing, found, strict=True)] == [True] * len(missing)
