"""The module `envoy_effects`: what it says of a gateway, judged on real TLS, real sockets and Envoy's own words."""

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
    """A service behind a gateway, as its answers look."""

    def do_GET(self) -> None:
        """Say who was asked for what."""
        self.send_response(200)
        self.send_header("x-envoy-upstream-service-time", "1")
        self.send_header("x-asked", f"{self.headers['Host']}{self.path}")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


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
def test_the_certificate_that_clients_are_shown_is_judged(
    tmp_path: Path, made: dict[str, Any], names: list[str], verdict: str, reason: str
) -> None:
    """Out of date, soon to be, of another name: each named, with what to do. No authority is needed for it."""
    gateway = module.Gateway("gw1")
    with serving(tmp_path, certificate(*made.pop("names"), **made)) as listener:
        module.look_at_certificate(gateway, {**listener, "names": names}, 14)

    assert [(one["verdict"], one.get("reason", "")) for one in gateway.verdicts] == [(verdict, reason)]
    assert verdict == "pass" or "apply the phase gateway" in gateway.verdicts[0]["fix"]


def test_a_request_carries_the_name_and_shows_the_path(tmp_path: Path) -> None:
    """What a client would send: its host name inside TLS, and the path that the route says."""
    with serving(tmp_path, certificate("api.example.com")) as listener:
        status, headers = module.request(listener, "api.example.com", "/v1/x")

    assert (status, headers["x-asked"]) == (200, "api.example.com/v1/x")


def test_nobody_who_answers_is_a_failure_and_not_unknown() -> None:
    """A port without a listener is what clients would find."""
    gateway = module.Gateway("gw1")
    closed = {"name": "x", "address": "127.0.0.1", "port": 1, "tls": False, "names": [], "routes": [route()]}
    module.look_at_routes(gateway, closed, HEALTHY)
    module.look_at_certificate(gateway, {**closed, "tls": True}, 14)
    module.look_at_redirect(gateway, closed)

    assert [one["verdict"] for one in gateway.verdicts] == ["fail"] * 3
