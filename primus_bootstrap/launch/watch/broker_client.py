"""The watcher's client for the broker: one connection per request, one JSON line each way, with a time limit.

A watcher runs as its job's user and has neither SSH key nor kubeconfig; the broker (`broker.py`) has them.
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
_MARGIN_S = 5.0  # the broker's own limit ends first, so that its answer names the cause
_MAX_BYTES = 64 << 20
_FIX = (
    "check `systemctl status primus-watch-broker.service` on this host; `primus-bootstrap apply hosts.yaml --phase scheduling` repairs it"
)


class NoAnswerError(Exception):
    """There is no authoritative answer; the state is unknown."""


class RefusedError(Exception):
    """The request was refused; `status` is the HTTP status of an API server, else 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        """Store message and status."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Broker:
    """The broker of this host."""

    path: Path = SOCKET

    def ask_node(self, node: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return a host's answer to a request for the program `primus-cli unit` there.

        Raises:
            NoAnswerError: The broker or the host did not answer in time.
            RefusedError: One of them refused the request.
        """
        return dict(self._ask({"what": NODE, "node": node, "request": dict(request), "timeout_s": timeout_s}, timeout_s))

    def ask_kubernetes(self, request: Mapping[str, Any], *, timeout_s: float) -> Any:
        """Return the API server's answer to a request of `primus_bootstrap.launch.watch.kube_broker`.

        Raises:
            NoAnswerError: The broker or the API server did not answer in time.
            RefusedError: One of them refused the request.
        """
        return self._ask({"what": KUBERNETES, "request": dict(request), "timeout_s": timeout_s}, timeout_s)

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> Any:
        line = json.dumps({"schema": SCHEMA, **request}).encode() + b"\n"
        deadline = time.monotonic() + timeout_s + _MARGIN_S
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout_s + _MARGIN_S)
                connection.connect(str(self.path))
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                text = _receive(connection, deadline)
            answer = dict(json.loads(text.decode("utf-8", "replace")))
        except (OSError, ValueError, TypeError) as error:
            raise NoAnswerError(f"the broker on this host did not answer ({self.path}: {error}); fix: {_FIX}") from error
        if answer.get("ok") is True:
            return answer.get("answer")
        message = str(answer.get("error", "no reason was given"))
        if answer.get("kind") == REFUSED:
            raise RefusedError(message, int(answer.get("status") or 0))
        raise NoAnswerError(message)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    data = bytearray()
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        piece = connection.recv(1 << 16)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > _MAX_BYTES:
            raise ValueError("the answer is too large")
