"""What a watcher asks the broker: one connection, one JSON line there, one answer back, in bounded time.

A watcher runs as its job's user and holds neither SSH key nor kubeconfig: the broker (`broker.py`) does.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "primus.broker/1"
SOCKET = Path("/run/primus-watch/broker.sock")
NODE, KUBERNETES = "node", "kubernetes"
REFUSED = "refused"
_AFTER_S = 5.0  # the broker's own limit ends first, and its answer says which
_LARGEST_BYTES = 64 << 20
_FIX = "systemctl status primus-watch-broker.service on this host; `primus-bootstrap apply hosts.yaml --phase scheduling` brings it back"


class NoAnswerError(Exception):
    """There is no answer that can be relied on; the state of what was asked about is unknown."""


class RefusedError(Exception):
    """The answer is no; `status` is HTTP's where an API server said it, else 0."""

    def __init__(self, said: str, status: int = 0) -> None:
        """Keep both."""
        super().__init__(said)
        self.status = status


@dataclass(frozen=True)
class Broker:
    """The broker of this host."""

    path: Path = SOCKET

    def ask_node(self, node: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return a host's answer to a request for the program `primus-cli unit` there.

        Raises:
            NoAnswerError: The broker or the host gave none in time.
            RefusedError: One of them refused.
        """
        return dict(self._ask({"what": NODE, "node": node, "request": dict(request), "timeout_s": timeout_s}, timeout_s))

    def ask_kubernetes(self, request: Mapping[str, Any], *, timeout_s: float) -> Any:
        """Return what the API server has; see `primus_bootstrap.launch.watch.kube_broker`.

        Raises:
            NoAnswerError: The broker or the API server gave none in time.
            RefusedError: One of them refused.
        """
        return self._ask({"what": KUBERNETES, "request": dict(request), "timeout_s": timeout_s}, timeout_s)

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> Any:
        line = json.dumps({"schema": SCHEMA, **request}).encode() + b"\n"
        deadline = time.monotonic() + timeout_s + _AFTER_S
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout_s + _AFTER_S)
                connection.connect(str(self.path))
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                text = _receive(connection, deadline)
            answer = dict(json.loads(text.decode("utf-8", "replace")))
        except (OSError, ValueError, TypeError) as error:
            raise NoAnswerError(f"the broker on this host gave no answer ({self.path}: {error}); fix: {_FIX}") from error
        if answer.get("ok") is True:
            return answer.get("answer")
        said = str(answer.get("error", "no reason was given"))
        if answer.get("kind") == REFUSED:
            raise RefusedError(said, int(answer.get("status") or 0))
        raise NoAnswerError(said)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    taken = bytearray()
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        piece = connection.recv(1 << 16)
        if not piece:
            return bytes(taken)
        taken += piece
        if len(taken) > _LARGEST_BYTES:
            raise ValueError("the answer is too large")
