"""Run containers of pods as processes of this machine, on Nodes that can be lost."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.child_processes import descendants
from tests.kubernetes.rest import Api, ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUND_S = 0.2


@dataclass
class Container:
    """The process of a pod; `asked_at` is the monotonic time of its deletion."""

    child: subprocess.Popen[bytes]
    log: Path
    asked_at: float = 0.0

    def kill(self) -> None:
        """Kill the process without a report, like the loss of its node."""
        pids = (self.child.pid, *descendants(self.child.pid))
        _send((self.child.pid,), signal.SIGSTOP)
        _send(pids, signal.SIGKILL)
        self.child.wait(10)


@dataclass
class Kubelets:
    """The kubelets of some Nodes for one namespace. A lost Node does not report."""

    api: Api
    namespace: str
    nodes: Sequence[str]
    folder: Path
    lost: set[str] = field(default_factory=set)
    containers: dict[str, Container] = field(default_factory=dict)
    broken: str = ""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._serve, name="kubelets", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread and all processes."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(10)
        for container in self.containers.values():
            container.kill()

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the namespace."""
        return self.api.items(f"/api/v1/namespaces/{self.namespace}/pods")

    def lose(self, node: str) -> None:
        """Lose a Node, and report its pods like the cluster's controllers do after its kubelet is silent."""
        self.lost.add(node)
        for pod in self.pods():
            container = self.containers.get(pod["metadata"]["uid"])
            if pod["spec"].get("nodeName") == node and container:
                container.kill()
        self.condition(node, "Unknown")

    def condition(self, node: str, status: str) -> None:
        """Set whether a Node and its pods are Ready."""
        ready = [{"type": "Ready", "status": status, "reason": "Test", "lastHeartbeatTime": _now(), "lastTransitionTime": _now()}]
        self.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": ready}}, "strategic")
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                messages = [{"type": "Ready", "status": "True" if status == "True" else "False", "lastTransitionTime": _now()}]
                self.api.patch(f"{self._path(pod)}/status", {"status": {"conditions": messages}}, "strategic")

    def _serve(self) -> None:
        while not self._over.wait(_ROUND_S):
            for pod in self.pods():
                node = pod["spec"].get("nodeName")
                if node in self.nodes and node not in self.lost:
                    try:
                        self._one(pod)
                    except ApiError as error:  # whoever removed it meanwhile was quicker
                        self.broken = "" if error.status in {404, 409} else str(error)

    def _one(self, pod: dict[str, Any]) -> None:
        uid, phase = pod["metadata"]["uid"], pod["status"].get("phase", "Pending")
        container = self.containers.get(uid)
        leaving = "deletionTimestamp" in pod["metadata"]
        if phase in {"Succeeded", "Failed"} or (leaving and container is None):
            if leaving:
                self.api.delete(self._path(pod), gracePeriodSeconds="0")
            return
        if container is None:
            self.containers[uid] = self._run(pod)
            self._say(pod, "Running", {"running": {"startedAt": _now()}})
            return
        code = container.child.poll()
        if code is not None:
            end = {"terminated": {"exitCode": 128 - code if code < 0 else code, "finishedAt": _now()}}
            self._say(pod, "Failed" if code else "Succeeded", end)
        elif leaving:
            self._leave(pod, container)

    def _leave(self, pod: dict[str, Any], container: Container) -> None:
        now = dt.datetime.now(dt.UTC).timestamp()
        if not container.asked_at:
            container.asked_at = now
            _send((container.child.pid,), signal.SIGTERM)
        if now - container.asked_at > int(pod["metadata"]["deletionGracePeriodSeconds"]):
            container.kill()

    def _run(self, pod: dict[str, Any]) -> Container:
        (main,) = pod["spec"]["containers"]
        known = {"spec.nodeName": pod["spec"]["nodeName"], "status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        messages = {one["name"]: one.get("value") or known[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in main["env"]}
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        log = self.folder / f"{pod['metadata']['name']}.log"
        index = pod["metadata"].get("annotations", {}).get("batch.kubernetes.io/job-completion-index")
        environment = {**messages, "PATH": path, **({"JOB_COMPLETION_INDEX": index} if index else {})}
        with log.open("ab") as output:
            words = [sys.executable if word == "python3" else word for word in main["command"]]
            child = subprocess.Popen(words, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
        return Container(child, log)

    def _say(self, pod: dict[str, Any], phase: str, state: dict[str, Any]) -> None:
        (main,) = pod["spec"]["containers"]
        ready = phase == "Running"
        truth = "True" if ready else "False"
        conditions = [{"type": kind, "status": truth, "lastTransitionTime": _now()} for kind in ("ContainersReady", "Ready")]
        container = {"name": main["name"], "image": main["image"], "imageID": "", "ready": ready, "restartCount": 0, "state": state}
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [container], "podIP": "127.0.0.1"}
        self.api.patch(f"{self._path(pod)}/status", {"status": status}, "strategic")

    def _path(self, pod: dict[str, Any]) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
