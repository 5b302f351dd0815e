"""Role `node_exporter`: verdicts of the verification on a real service."""

from __future__ import annotations

import http.server
import ssl
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.test_role_host_certificate import ensure, installed, specified
from tests.unit.test_role_node_exporter import NUMBERS, effects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """A service with or without password."""

    def do_GET(self) -> None:
        """Answer with metrics or with 401."""
        server: Any = self.server
        right = self.headers.get("Authorization") == "Basic cHJvbWV0aGV1czpyaWdodA=="  # prometheus:right
        self.send_response(200 if right or server.is_open else 401)
        self.end_headers()
        self.wfile.write(NUMBERS.encode())

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """Return a folder with a certificate for 127.0.0.1."""
    ensure(tmp_path / "ca", specified(names=("n1", "127.0.0.1")))
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


def verdicts_on(tls: Path, port: int, **changes: Any) -> dict[str, str]:
    """Run the verification; return the verdict of each check."""
    words = {"host": "n1", "connect": "127.0.0.1", "address": "n1", "port": port, "ca_file": str(tls / "ca.crt"), "user": "prometheus"}
    service = effects.Service({**words, "password": "right", **changes}, "node_exporter")
    effects.check_metrics(service, service.check_access("/metrics", "unit"), "unit")
    assert all(one["fix"] for one in service.verdicts.records if one["verdict"] != "pass")
    return {one["check"].removeprefix("node_exporter."): one["verdict"] for one in service.verdicts.records}


def test_service_with_tls_and_password_passes(tls: Path) -> None:
    """The right password works; a wrong one, none and plain http are refused."""
    for port in serving(tls):
        found = verdicts_on(tls, port)

        assert found["answers"] == found["refuses_wrong_password"] == found["refuses_no_password"] == "pass"
        assert found["refuses_plain_text"] == found["metrics"] == found["text_files"] == "pass"


def test_service_without_password_fails(tls: Path) -> None:
    """An answer alone is not enough."""
    for port in serving(tls, is_open=True):
        found = verdicts_on(tls, port)

        assert (found["answers"], found["refuses_wrong_password"], found["refuses_no_password"]) == ("pass", "fail", "fail")


def test_service_without_tls_fails(tls: Path) -> None:
    """It answers plain http but not HTTPS."""
    for port in serving(tls, with_tls=False):
        found = verdicts_on(tls, port)

        assert (found["answers"], found["refuses_plain_text"], found["metrics"]) == ("fail", "fail", "unknown")


def test_certificate_with_another_name_fails(tls: Path) -> None:
    """Prometheus uses the inventory name and would reject it."""
    for port in serving(tls):
        assert verdicts_on(tls, port, address="n2")["answers"] == "fail"


def test_missing_service_fails_and_other_checks_are_unknown(tls: Path) -> None:
    """A service that does not answer refuses no request."""
    assert verdicts_on(tls, 1) == {
        "address": "pass",
        "answers": "fail",
        "refuses_wrong_password": "unknown",
        "refuses_no_password": "unknown",
        "refuses_plain_text": "unknown",
        "metrics": "unknown",
        "text_files": "unknown",
    }


def test_kernel_knows_its_addresses() -> None:
    """No host has an address of the documentation's network (RFC 5737). Nothing is sent."""
    addresses: Any = sys.modules["ansible.module_utils.own_addresses"]

    assert [addresses.is_own(one) for one in ("127.0.0.1", "192.0.2.1", "2001:db8::1")] == [True, False, False]
    assert addresses.listen_problem("192.0.2.1", "n1") == "192.0.2.1 is not an address of n1."
    assert addresses.listen_problem("127.0.0.1", "n1") == ""
