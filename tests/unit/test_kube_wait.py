"""Whom a rollout waits for: a DaemonSet's pods on nodes that are down are wanted by its status, and nobody can start them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube_nodes_rig import node, pod
from tests.unit.role_module import load_role_module

load_role_module("kube_common", "kube_reach")

from ansible.module_utils.kube_cluster import Cluster, RefusedError, wait_for  # noqa: E402 - loaded above, as Ansible does

WANTED = [{"api_version": "apps/v1", "kind": "DaemonSet", "namespace": "n", "name": "csi", "condition": "rollout"}]


class Made(Cluster):  # type: ignore[misc] # loaded by path, so that its type is not known
    """A cluster of three nodes with a pod of the DaemonSet each; those named in `down` are not ready, and neither are their pods."""

    def __init__(self, *down: str, unready: tuple[str, ...] = (), silent: bool = False) -> None:
        """Keep them; `unready` nodes are well, and their pods are not. With `silent` the server does not tell of nodes."""
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
        (Made("gpu2", unready=("gpu3",)), ["1 of 2 pods ready, 3 of the last change, beside 1 on nodes that are not ready"]),
        (Made("gpu2", silent=True), ["2 of 3 pods ready"]),
    ],
    ids=["all well", "a node is down", "a pod does not start", "both", "nobody tells of nodes"],
)
def test_a_rollout_waits_for_nodes_that_are_well(cluster: Made, missing: list[str]) -> None:
    """A node that is down keeps no chart waiting; a pod that does not start on a good one does, and so does what nobody could be asked."""
    found = wait_for(cluster, WANTED, 0)

    assert [text in said for text, said in zip(missing, found, strict=True)] == [True] * len(missing)
