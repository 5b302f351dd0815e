"""Talks to an API server of Kubernetes: one request, one connection, bounded time. No answer is another thing than a refusal."""

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

_WAIT_S, _WHOLE_S = 5.0, 20.0  # for one packet, and for the whole answer
_PIECE_BYTES, _LARGEST_BYTES = 1 << 16, 64 << 20
_PAGE = 500
_SHOWN = 300
_OK = range(200, 300)
NOT_FOUND, CONFLICT, TOO_MANY, SERVER_FAULT = 404, 409, 429, 500


class ApiSilentError(Exception):
    """The API server gave no answer that says anything of what was asked; that is unknown."""


class ApiRefusedError(Exception):
    """The API server refused; `status` is HTTP's."""

    def __init__(self, status: int, said: str) -> None:
        """Keep what it said."""
        super().__init__(f"the API server refused ({status}): {said}")
        self.status = status


@dataclass
class Api:
    """An API server by a kubeconfig, which is read anew when the server takes it for expired."""

    kubeconfig: Path
    _access: Access | None = field(default=None, repr=False)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object, or a page of a list."""
        return self._ask("GET", path, query)

    def find(self, path: str) -> dict[str, Any] | None:
        """Return an object; None where the server says that there is none."""
        try:
            return self.get(path)
        except ApiRefusedError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def text(self, path: str, **query: str) -> str:
        """Return what is no object, like a pod's log."""
        return self._send("GET", path, query)[1].decode("utf-8", "replace")

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield what a list holds, page by page; the kind's own name and version are not in it."""
        again = ""
        while True:
            page = self.get(path, limit=str(_PAGE), **query, **({"continue": again} if again else {}))
            yield from page.get("items") or ()
            again = str((page.get("metadata") or {}).get("continue") or "")
            if not again:
                return

    def create(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        """Make an object; return it as the server keeps it."""
        return self._ask("POST", path, query, body)

    def delete(self, path: str, body: dict[str, Any]) -> None:
        """Have an object deleted; one that is gone, or is another by now, is left at that."""
        try:
            self._ask("DELETE", path, {}, body)
        except ApiRefusedError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def _ask(self, verb: str, path: str, query: dict[str, str], body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask once for an object.

        Raises:
            ApiSilentError: No answer, not in time, or one that says only that the server has trouble.
            ApiRefusedError: It answered, and refused.
        """
        status, text = self._send(verb, path, query, body)
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ApiSilentError(f"the API server's answer ({status}) was cut off, or is no object") from error

    def _send(self, verb: str, path: str, query: dict[str, str], body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        deadline = time.monotonic() + _WHOLE_S
        try:
            access = self._access = self._access or read_access(self.kubeconfig)
            target = f"{access.prefix}{path}{'?' + urlencode(query) if query else ''}"
            headers = {"Accept": "application/json, */*", "User-Agent": "primus-watch", **access.headers()}
            sent = None if body is None else json.dumps(body).encode()
            headers.update({} if sent is None else {"Content-Type": "application/json"})
            with closing(http.client.HTTPSConnection(access.host, access.port, timeout=_WAIT_S, context=access.context)) as line:
                line.request(verb, target, sent, headers)
                answer = line.getresponse()
                text = _read(answer, deadline)
        except PlanError as error:
            raise ApiSilentError(f"{error.what}; fix: {error.fix}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._access = None  # it may have been renewed
            raise ApiSilentError(f"the API server gave no answer: {type(error).__name__}: {error}") from error
        if answer.status in _OK:
            return answer.status, text
        said = _said(text) or answer.reason
        if answer.status == http.client.UNAUTHORIZED:
            self._access = None
            raise ApiSilentError(f"the API server does not know us ({said}): {self.kubeconfig} has expired or is another cluster's")
        if answer.status == TOO_MANY or answer.status >= SERVER_FAULT:
            raise ApiSilentError(f"the API server has trouble ({answer.status}): {said}")
        raise ApiRefusedError(answer.status, said)


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read an answer piece by piece: a server that trickles must not hold the watcher."""
    taken = bytearray()
    while True:
        piece = answer.read1(_PIECE_BYTES)
        if not piece:
            return bytes(taken)
        taken += piece
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer was not complete after {_WHOLE_S:.0f} s")
        if len(taken) > _LARGEST_BYTES:
            raise ValueError("the answer is too large")


def _said(text: bytes) -> str:
    """Return what a refusal says: the API server's message, or the page of a proxy in between."""
    try:
        data = dict(json.loads(text))
        said = str(data.get("message") or data.get("reason") or "")
    except (ValueError, TypeError):
        said = text.decode("utf-8", "replace")
    return " ".join(said.split())[:_SHOWN]
