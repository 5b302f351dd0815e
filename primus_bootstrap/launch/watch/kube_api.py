"""The nodes' client for the Kubernetes API server: one connection per request, with time limits.

Standard library only, because nothing can be installed on nodes. The controller uses `kubernetes/api.py`, which supports more kubeconfigs.
"""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.watch.kube_config import Access, read_access

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_READ_S, _ANSWER_S = 5.0, 20.0  # time limits for one read, and for the whole answer
_PIECE_BYTES, _MAX_BYTES = 1 << 16, 64 << 20
_PAGE = 500
_SHOWN = 300
_OK = range(200, 300)
NOT_FOUND, CONFLICT, TOO_MANY, SERVER_FAULT = 404, 409, 429, 500


class ApiUnavailableError(Exception):
    """The API server gave no authoritative answer; the state is unknown."""


class ApiRefusedError(Exception):
    """The API server refused the request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        """Store status and message."""
        super().__init__(f"the API server refused ({status}): {message}")
        self.status = status


@dataclass
class Api:
    """An API server, by a kubeconfig. It is read again after a failure, because it may have been renewed."""

    kubeconfig: Path
    _access: Access | None = field(default=None, repr=False)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object, or a page of a list."""
        return self._ask("GET", path, query)

    def find(self, path: str) -> dict[str, Any] | None:
        """Return an object; None if the server reports that it does not exist."""
        try:
            return self.get(path)
        except ApiRefusedError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def text(self, path: str, **query: str) -> str:
        """Return an answer that is not JSON, like a pod's log."""
        return self._send("GET", path, query)[1].decode("utf-8", "replace")

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page; they have no apiVersion and kind."""
        token = ""
        while True:
            page = self.get(path, limit=str(_PAGE), **query, **({"continue": token} if token else {}))
            yield from page.get("items") or ()
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return

    def create(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        """Create an object; return it as the server stores it."""
        return self._ask("POST", path, query, body)

    def delete(self, path: str, body: dict[str, Any]) -> None:
        """Delete an object. It is no error if it does not exist, or has been replaced."""
        try:
            self._ask("DELETE", path, {}, body)
        except ApiRefusedError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def _ask(self, verb: str, path: str, query: dict[str, str], body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send one request, and return the object in the answer.

        Raises:
            ApiUnavailableError: There is no answer in time, or the server reports a fault of its own.
            ApiRefusedError: The server refused the request.
        """
        status, text = self._send(verb, path, query, body)
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ApiUnavailableError(f"the API server's answer ({status}) is incomplete or not an object") from error

    def _send(self, verb: str, path: str, query: dict[str, str], body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        deadline = time.monotonic() + _ANSWER_S
        try:
            access = self._access = self._access or read_access(self.kubeconfig)
            target = f"{access.prefix}{path}{'?' + urlencode(query) if query else ''}"
            headers = {"Accept": "application/json, */*", "User-Agent": "primus-watch", **access.headers()}
            sent = None if body is None else json.dumps(body).encode()
            headers.update({} if sent is None else {"Content-Type": "application/json"})
            with closing(http.client.HTTPSConnection(access.host, access.port, timeout=_READ_S, context=access.context)) as line:
                line.request(verb, target, sent, headers)
                answer = line.getresponse()
                text = _read(answer, deadline)
        except PlanError as error:
            raise ApiUnavailableError(f"{error.what}; fix: {error.fix}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._access = None  # it may have been renewed
            raise ApiUnavailableError(f"the API server did not answer: {type(error).__name__}: {error}") from error
        if answer.status in _OK:
            return answer.status, text
        message = _message(text) or answer.reason
        if answer.status == http.client.UNAUTHORIZED:
            self._access = None
            reason = "it has expired, or belongs to another cluster"
            raise ApiUnavailableError(f"the API server rejects {self.kubeconfig} ({message}): {reason}")
        if answer.status == TOO_MANY or answer.status >= SERVER_FAULT:
            raise ApiUnavailableError(f"the API server has a fault ({answer.status}): {message}")
        raise ApiRefusedError(answer.status, message)


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read an answer with a time limit: a slow server must not block the watcher."""
    data = bytearray()
    while True:
        piece = answer.read1(_PIECE_BYTES)
        if not piece:
            return bytes(data)
        data += piece
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer was not complete after {_ANSWER_S:.0f} s")
        if len(data) > _MAX_BYTES:
            raise ValueError("the answer is too large")


def _message(text: bytes) -> str:
    """Return the message of a refusal, from the API server or from a proxy."""
    try:
        data = dict(json.loads(text))
        message = str(data.get("message") or data.get("reason") or "")
    except (ValueError, TypeError):
        message = text.decode("utf-8", "replace")
    return " ".join(message.split())[:_SHOWN]
