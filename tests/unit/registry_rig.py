"""A fake image registry on loopback that gives tokens to every client, as public registries do."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


@dataclass
class Registry:
    """The contents by path below /v2/; `server` is its name in references, `asked` are the requested paths."""

    server: str = ""
    contents: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def put_image(self, repository: str, tag: str, *, text: str = "an image") -> str:
        """Add a manifest with a tag and its digest; return its SHA-256."""
        content = json.dumps({"schemaVersion": 2, "annotations": {"is": text}}).encode()
        return self._put(repository, tag, content)

    def put_chart(self, repository: str, tag: str, archive: bytes) -> str:
        """Add a chart; return the SHA-256 of its archive."""
        sha256 = hashlib.sha256(archive).hexdigest()
        layer = {"mediaType": CHART_LAYER, "digest": f"sha256:{sha256}", "size": len(archive)}
        self._put(repository, tag, json.dumps({"schemaVersion": 2, "layers": [layer]}).encode())
        self.contents[f"{repository}/blobs/sha256:{sha256}"] = archive
        return sha256

    def _put(self, repository: str, tag: str, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        for name in (tag, f"sha256:{sha256}"):
            self.contents[f"{repository}/manifests/{name}"] = content
        return sha256


@contextmanager
def serve_registry() -> Iterator[Registry]:
    """Serve a registry during the block."""
    registry = Registry()

    class _Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Disable the log."""

        def do_GET(self) -> None:
            """Answer as specified: a challenge without a token, then the content."""
            registry.asked.append(self.path)
            path = self.path.removeprefix("/v2/")
            if self.path.startswith("/token?"):
                self._answer(200, json.dumps({"token": "for everybody"}).encode())
            elif self.headers.get("Authorization") != "Bearer for everybody":
                self._answer(401, b"", f'Bearer realm="http://{registry.server}/token",service="here",scope="pull"')
            else:
                self._answer(200 if path in registry.contents else 404, registry.contents.get(path, b""))

        def _answer(self, code: int, content: bytes, challenge: str = "") -> None:
            self.send_response(code)
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        registry.server = f"127.0.0.1:{server.server_port}"
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
