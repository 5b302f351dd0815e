"""The role `node_exporter`: the hash of its password, and what its verification makes of answers."""

from __future__ import annotations

import http.server
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.test_role_host_certificate import bring, installed, wish
from tests.unit.test_role_node_exporter import NUMBERS, effects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """A service with a password, or one that lets everybody in."""

    def do_GET(self) -> None:
        """Answer with the numbers, or with 401."""
        server: Any = self.server
        right = self.headers.get("Authorization") == "Basic cHJvbWV0aGV1czpyaWdodA=="  # prometheus:right
        self.send_response(200 if right or server.is_open else 401)
        self.end_headers()
        self.wfile.write(NUMBERS.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """Return a folder with a certificate for 127.0.0.1."""
    bring(tmp_path / "ca", wish(names=("n1", "127.0.0.1")))
    return installed(tmp_path / "ca", "n1", tmp_path / "tls")


def serving(tls: Path, *, with_tls: bool = True, is_open: bool = False) -> Iterator[int]:
    """Run a service; yield its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.is_open = is_open  # type: ignore[attr-defined]
    if with_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "host.crt", tls / "host.key")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def judged(tls: Path, port: int, **changes: Any) -> dict[str, str]:
    """Let the verification look; return the verdicts by check."""
    words = {"host": "n1", "connect": "127.0.0.1", "address": "n1", "port": port, "ca_file": str(tls / "ca.crt"), "user": "prometheus"}
    service = effects.Service({**words, "password": "right", **changes}, "node_exporter")
    effects.look_at_numbers(service, service.look_at_access("/metrics", "unit"), "unit")
    assert all(one["fix"] for one in service.verdicts if one["verdict"] != "pass")
    return {one["check"].removeprefix("node_exporter."): one["verdict"] for one in service.verdicts}


def test_a_service_with_tls_and_a_password_passes(tls: Path) -> None:
    """Let in with the right password under its own name, refused with a wrong one, none, and plain text."""
    for port in serving(tls):
        found = judged(tls, port)

        assert found["answers"] == found["refuses_wrong_password"] == found["refuses_no_password"] == "pass"
        assert found["refuses_plain_text"] == found["numbers"] == found["text_files"] == "pass"


def test_a_service_that_lets_everybody_in_fails(tls: Path) -> None:
    """It answers, and that is not enough."""
    for port in serving(tls, is_open=True):
        found = judged(tls, port)

        assert (found["answers"], found["refuses_wrong_password"], found["refuses_no_password"]) == ("pass", "fail", "fail")


def test_a_service_without_tls_fails(tls: Path) -> None:
    """Plain text is answered, and HTTPS is not."""
    for port in serving(tls, with_tls=False):
        found = judged(tls, port)

        assert (found["answers"], found["refuses_plain_text"], found["numbers"]) == ("fail", "fail", "unknown")


def test_a_certificate_of_another_name_fails(tls: Path) -> None:
    """Whoever scrapes it under its name in the inventory would not believe it."""
    for port in serving(tls):
        assert judged(tls, port, address="n2")["answers"] == "fail"


def test_nobody_there_is_a_fail_and_the_rest_unknown(tls: Path) -> None:
    """A service that does not answer refuses nobody."""
    assert judged(tls, 1) == {
        "answers": "fail",
        "refuses_wrong_password": "unknown",
        "refuses_no_password": "unknown",
        "refuses_plain_text": "unknown",
        "numbers": "unknown",
        "text_files": "unknown",
    }
