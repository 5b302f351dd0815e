"""Module `envoy_effects`: verdicts on a gateway with real TLS and sockets."""

from __future__ import annotations

import http.client
import http.server
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.envoy_rig import certificate
from tests.unit.test_role_envoy_effects import HEALTHY, module, route

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Answer(http.server.BaseHTTPRequestHandler):
    """A service behind a gateway."""

    def do_GET(self) -> None:
        """Return host and path of the request."""
        self.send_response(200)
        self.send_header("x-envoy-upstream-service-time", "1")
        self.send_header("x-asked", f"{self.headers['Host']}{self.path}")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Suppress the log."""


@contextmanager
def serving(folder: Path, pair: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Serve TLS with a certificate; yield the listener."""
    for name, text in zip(("crt", "key"), pair, strict=True):
        (folder / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield {"name": "https", "address": "127.0.0.1", "port": server.server_address[1], "tls": True, "names": [], "routes": []}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("made", "names", "verdict", "reason"),
    [
        ({"names": ["api.example.com"]}, ["api.example.com"], "pass", ""),
        ({"names": ["*.example.com"]}, ["*.example.com"], "pass", ""),
        ({"names": ["api.example.com"], "by_authority": True}, ["api.example.com"], "pass", ""),
        ({"names": ["api.example.com"], "by_authority": True, "days": -1}, ["api.example.com"], "fail", "it has expired"),
        ({"names": ["api.example.com"]}, [], "pass", ""),
        ({"names": ["api.example.com"], "days": 5}, ["api.example.com"], "fail", "it expires in 4 days"),
        ({"names": ["api.example.com"], "days": -1}, ["api.example.com"], "fail", "it has expired"),
        ({"names": ["api.example.com"], "days": -1}, [], "fail", "it has expired"),
        ({"names": ["api.example.com"], "since": -2, "days": 90}, [], "fail", "it is not valid yet"),
        ({"names": ["other.example.com"]}, ["api.example.com"], "fail", "it is not for api.example.com"),
    ],
)
def test_served_certificate_is_checked(tmp_path: Path, made: dict[str, Any], names: list[str], verdict: str, reason: str) -> None:
    """Expired, soon to expire and wrong name each fail with a fix, without a known authority."""
    gateway = module.Verdicts("envoy", "gw1")
    with serving(tmp_path, certificate(*made.pop("names"), **made)) as listener:
        module.check_certificate(gateway, {**listener, "names": names}, 14)

    assert [(one["verdict"], one.get("reason", "")) for one in gateway.records] == [(verdict, reason)]
    assert verdict == "pass" or "apply the phase gateway" in gateway.records[0]["fix"]


def test_request_has_host_name_and_path(tmp_path: Path) -> None:
    """The host name is in SNI and header, the path is that of the route."""
    with serving(tmp_path, certificate("api.example.com")) as listener:
        status, headers = module.request(listener, "api.example.com", "/v1/x")

    assert (status, headers["x-asked"]) == (200, "api.example.com/v1/x")


def test_closed_port_fails() -> None:
    """Clients would find no listener either, so the result is not unknown."""
    gateway = module.Verdicts("envoy", "gw1")
    closed = {"name": "x", "address": "127.0.0.1", "port": 1, "tls": False, "names": [], "routes": [route()]}
    module.check_routes(gateway, closed, HEALTHY)
    module.check_certificate(gateway, {**closed, "tls": True}, 14)
    module.check_redirect(gateway, closed)

    assert [one["verdict"] for one in gateway.records] == ["fail"] * 3
