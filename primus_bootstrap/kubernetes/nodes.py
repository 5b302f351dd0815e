"""Read and patch the Nodes of a cluster, several in parallel."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.api import WORKERS, ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from primus_bootstrap.kubernetes.api import Api

NODES = "/api/v1/nodes"
CONFLICT, MISSING, BUSY = 409, 404, 429
# A patch can conflict: the kubelet and controllers also change a Node.
ATTEMPTS = 5
WAIT_S = 0.2
_NAMED = 5


def node_path(name: str) -> str:
    """Return the API path of a Node."""
    return f"{NODES}/{name}"


def read_nodes(api: Api) -> dict[str, dict[str, Any]]:
    """Return all Nodes by name, with one list."""
    return {str(node["metadata"]["name"]): node for node in api.items(NODES)}


def read_node(api: Api, name: str) -> dict[str, Any]:
    """Return a Node, or an empty dict if it does not exist."""
    try:
        return api.get(node_path(name))
    except ApiError as error:
        if error.status == MISSING:
            return {}
        raise


def change_node(api: Api, node: Mapping[str, Any], patch_for: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> dict[str, Any]:
    """Patch a Node with the result of `patch_for` and return it. After a conflict, read it again and retry.

    Raises:
        ApiError: The patch was rejected, or all attempts conflicted.
    """
    found = dict(node)
    for attempt in range(1, ATTEMPTS + 1):
        patch = patch_for(found)
        path = node_path(str(found["metadata"]["name"]))
        if patch is None:
            return found
        try:
            return api.patch(path, patch)
        except ApiError as error:
            if error.status not in (CONFLICT, BUSY) or attempt == ATTEMPTS:
                raise
        time.sleep(WAIT_S * attempt)
        found = api.get(path)
    return found


def for_each(names: list[str], act: Callable[[str], None]) -> None:
    """Call `act` for many Nodes, several in parallel. A failure does not stop the others.

    Raises:
        RunError: Some calls failed; the error names the Nodes and quotes the first error.
    """
    failed: dict[str, ApiError] = {}

    def guarded(name: str) -> None:
        try:
            act(name)
        except ApiError as error:
            failed[name] = error

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(guarded, names))
    if failed:
        first = min(failed)
        more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        shown = ", ".join(sorted(failed)[:_NAMED]) + more
        raise RunError(f"{len(failed)} of {len(names)} Nodes could not be changed ({shown}): {failed[first].what}", fix=failed[first].fix)
