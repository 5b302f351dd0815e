"""Register Nodes without machines, for the scheduler and other readers of Nodes.

By hand: `python -m tests.kubernetes.fake_nodes KUBECONFIG NAME...`.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kubernetes.rest import Api, in_parallel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERSION = "v1.20.2"


def register_nodes(
    api: Api,
    labels_of: Mapping[str, Mapping[str, str]],
    *,
    gpus: int = 8,
    resource: str = "amd.com/gpu",
    conditions: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Register Nodes that are Ready.

    Args:
        api: The server.
        labels_of: The labels of each Node by name.
        gpus: The number of GPUs of each Node.
        resource: The resource name of the GPUs.
        conditions: Further conditions of each Node.
    """
    devices = {resource: str(gpus)} if gpus else {}
    in_parallel(lambda name: api.create("/api/v1/nodes", _node(name, labels_of[name], devices, conditions)), labels_of)


def _node(name: str, labels: Mapping[str, str], devices: Mapping[str, str], conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}
    offer = {"cpu": "96", "memory": "1536Gi", "pods": "110", "ephemeral-storage": "1Ti", **devices}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **labels},
        },
        "status": {"capacity": offer, "allocatable": offer, "conditions": [ready, *conditions], "nodeInfo": _node_info()},
    }


def _node_info() -> dict[str, str]:
    unknown = dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"), "")
    return {**unknown, "kubeletVersion": _VERSION, "kubeProxyVersion": _VERSION, "operatingSystem": "linux", "architecture": "amd64"}


if __name__ == "__main__":
    register_nodes(Api(Path(sys.argv[1])), {name: {} for name in sys.argv[2:]})
