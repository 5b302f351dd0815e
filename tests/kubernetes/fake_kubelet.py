"""Report the states of pods without a kubelet: a bound pod runs, a Job's pod succeeds, a deleted pod is removed.

By hand, until interrupted: `python -m tests.kubernetes.fake_kubelet KUBECONFIG`.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kubernetes.rest import Api, ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

# How a pod ends is asked for by its own annotation; one that has none runs for ever, except a Job's, which succeeds.
EXIT_CODE = "fake-kubelet/exit-code"
_ROUND_S = 0.2


@contextmanager
def running_pods(api: Api) -> Iterator[None]:
    """Report the states in a thread during the block."""
    over = threading.Event()
    thread = threading.Thread(target=_serve, args=(api, over), name="fake-kubelet", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _serve(api: Api, over: threading.Event) -> None:
    while not over.wait(_ROUND_S):
        one_round(api)


def one_round(api: Api) -> None:
    """Update every pod once."""
    for pod in api.items("/api/v1/pods"):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        try:
            if "deletionTimestamp" in pod["metadata"]:
                api.delete(path, gracePeriodSeconds="0")
            elif status := next_status(pod):
                api.patch(f"{path}/status", {"status": status})
        except ApiError as error:
            # Whoever removed or replaced it meanwhile was quicker.
            if error.status not in {404, 409}:
                raise


def next_status(pod: dict[str, Any]) -> dict[str, Any] | None:
    """Return the next status of a pod, or None."""
    phase = pod["status"].get("phase", "Pending")
    if not pod["spec"].get("nodeName") or phase in {"Succeeded", "Failed"}:
        return None
    if phase == "Pending":
        return _status(pod, "Running", {"running": {"startedAt": _now()}}, ready=True)
    code = _exit_code(pod)
    if code is None:
        return None
    end = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": _now()}}
    return _status(pod, "Failed" if code else "Succeeded", end, ready=False)


def _exit_code(pod: dict[str, Any]) -> int | None:
    wanted = pod["metadata"].get("annotations", {}).get(EXIT_CODE)
    if wanted is not None:
        return int(wanted)
    return 0 if any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", [])) else None


def _status(pod: dict[str, Any], phase: str, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    truth = "True" if ready else "False"
    kinds = {"Initialized": "True", "PodScheduled": "True", "ContainersReady": truth, "Ready": truth}
    conditions = [{"type": kind, "status": status, "lastTransitionTime": _now()} for kind, status in kinds.items()]
    containers = [
        {"name": one["name"], "image": one["image"], "imageID": "", "ready": ready, "started": ready, "restartCount": 0, "state": state}
        for one in pod["spec"]["containers"]
    ]
    # TEST-NET-1 (RFC 5737): an address that nobody answers at.
    addresses = {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}], "hostIP": "192.0.2.2"}
    return {"phase": phase, "conditions": conditions, "containerStatuses": containers, "startTime": _now(), **addresses}


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    with running_pods(Api(Path(sys.argv[1]))):
        while True:
            time.sleep(60)
