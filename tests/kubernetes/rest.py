"""A minimal HTTPS client for the API server, fast enough for thousands of Nodes."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(Exception):
    """The server rejected a request with the HTTP status `status`."""

    def __init__(self, status: int, message: str) -> None:
        """Read a kubeconfig with embedded certificates."""
        super().__init__(f"{status}: {message}")
        self.status = status


class _Connection(http.client.HTTPSConnection):
    """A connection that closes when its thread ends."""

    def __del__(self) -> None:
        self.close()


class Api:
    """A client with the user of a kubeconfig and one open connection per thread."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read a kubeconfig that carries its certificates in itself."""
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"])
        self._trust = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]))
        with tempfile.TemporaryDirectory() as folder:
            both = Path(folder) / "client.pem"
            both.touch(mode=0o600)
            both.write_text(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
            self._trust.load_cert_chain(both)
        self._of_thread = threading.local()

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Read an object or a list."""
        return self._ask("GET", path, query)

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Read the items of a list."""
        found: list[dict[str, Any]] = self.get(path, **query)["items"]
        return found

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object in a list."""
        return self._ask("POST", path, {}, body)

    def patch(self, path: str, body: dict[str, Any], kind: str = "merge", **query: str) -> dict[str, Any]:
        """Change an object; `kind` is `merge`, `strategic` or `apply`, the last with fieldManager in the query."""
        return self._ask("PATCH", path, query, body, _PATCHES[kind])

    def delete(self, path: str, **query: str) -> dict[str, Any]:
        """Delete an object, or all of a list."""
        return self._ask("DELETE", path, query)

    def _ask(
        self, verb: str, path: str, query: dict[str, str], body: dict[str, Any] | None = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else json.dumps(body).encode()
        try:
            status, answer = self._exchange(verb, target, content, kind)
        except (http.client.HTTPException, ConnectionError):
            # A connection that was left alone may have been closed meanwhile.
            self._of_thread.connection = None
            status, answer = self._exchange(verb, target, content, kind)
        found: dict[str, Any] = json.loads(answer) if answer.startswith(b"{") else {"message": answer.decode(errors="replace")}
        if status >= 400:
            raise ApiError(status, found.get("message", ""))
        return found

    def _exchange(self, verb: str, target: str, content: bytes | None, kind: str) -> tuple[int, bytes]:
        connection = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = _Connection(self._address.hostname or "", self._address.port, context=self._trust, timeout=60)
            self._of_thread.connection = connection
        connection.request(verb, target, content, {"Content-Type": kind, "Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def in_parallel(act: Callable[[Any], object], over: Iterable[object], threads: int = 8) -> None:
    """Call a function for each item in parallel; raise the first error."""
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(act, over):
            pass


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()
