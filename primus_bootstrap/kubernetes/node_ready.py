"""Wait until a Node is Ready again after a reboot and its kubelet has renewed its lease."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.api import ApiError
from primus_bootstrap.kubernetes.nodes import MISSING, read_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_bootstrap.kubernetes.api import Api

POLL_S = 3.0
# The kubelet renews its lease every ten seconds: https://kubernetes.io/docs/concepts/architecture/nodes/#node-heartbeats
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def wait_for(
    api: Api,
    node: str,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a Node is Ready and its lease was renewed since the call. Return at once if the Node does not exist.

    Retries if the API server does not answer: it may run on the rebooted host.

    Raises:
        RunError: The Node was not ready in time.
    """
    deadline = clock() + limit_s
    first: str | None = None
    why = ""
    while True:
        try:
            found = read_node(api, node)
            if not found:
                return
            renewed = _renew_time(api, node)
            why = _unready(found) or ("its kubelet has not renewed its lease since" if renewed in ("", first) or first is None else "")
            first = renewed if first is None else first
        except ApiError as error:
            why = error.what
        if not why:
            return
        if clock() >= deadline:
            what = f"Node {node} was not ready within {limit_s:g} s: {why}"
            raise RunError(what, fix=f"run `journalctl -u kubelet -u containerd -n 50` on {node}, correct the cause, and run this again")
        wait(POLL_S)


def _renew_time(api: Api, node: str) -> str:
    """Return when the kubelet last renewed its lease, or an empty string without a lease."""
    try:
        return str((api.get(f"{_LEASES}/{node}").get("spec") or {}).get("renewTime", ""))
    except ApiError as error:
        if error.status == MISSING:
            return ""
        raise


def _unready(node: dict[str, Any]) -> str:
    """Return why a Node is not Ready, or an empty string."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready":
            detail = condition.get("message") or condition.get("reason") or condition["status"]
            return "" if condition["status"] == "True" else f"it is not Ready ({detail})"
    return "it has no condition Ready"
