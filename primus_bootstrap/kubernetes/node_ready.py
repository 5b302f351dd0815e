"""Wait until a Node is back: Ready, and by what its kubelet has said since, not by what it said before its host went away."""

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
# A kubelet renews it every ten seconds: https://kubernetes.io/docs/concepts/architecture/nodes/#node-heartbeats
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def wait_for(
    api: Api,
    node: str,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a Node is Ready and its lease was renewed after the first look; one that the cluster does not have is not waited for.

    An API server that gives no answer is asked again: it may be the one of the host that was rebooted.

    Raises:
        RunError: it is not back within the time.
    """
    deadline = clock() + limit_s
    first: str | None = None
    why = ""
    while True:
        try:
            found = read_node(api, node)
            if not found:
                return
            heard = _renewed(api, node)
            why = _unready(found) or ("its kubelet has not been heard of since" if heard in ("", first) or first is None else "")
            first = heard if first is None else first
        except ApiError as error:
            why = error.what
        if not why:
            return
        if clock() >= deadline:
            what = f"Node {node} was not back within {limit_s:g} s: {why}"
            raise RunError(what, fix="see `journalctl -u kubelet -u containerd -n 50` there, then the same again")
        wait(POLL_S)


def _renewed(api: Api, node: str) -> str:
    """Return when the kubelet was heard of last; empty where it never was."""
    try:
        return str((api.get(f"{_LEASES}/{node}").get("spec") or {}).get("renewTime", ""))
    except ApiError as error:
        if error.status == MISSING:
            return ""
        raise


def _unready(node: dict[str, Any]) -> str:
    """Return why a Node is not Ready; empty where it is."""
    for one in (node.get("status") or {}).get("conditions") or ():
        if one["type"] == "Ready":
            return "" if one["status"] == "True" else f"it is not Ready ({one.get('message') or one.get('reason') or one['status']})"
    return "it says nothing of being Ready"
