# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Check a web service of this host as a client: HTTPS with its own name, with the right, a wrong and no password, and plain HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from typing import Any

from ansible.module_utils.own_addresses import check_address
from ansible.module_utils.verdict_records import Verdicts

CALL_S = 15.0
UNAUTHORIZED = 401


class NamedConnection(http.client.HTTPSConnection):
    """A connection to one address that expects a certificate with another name, because clients of the cluster use that name."""

    def __init__(self, connect: str, name: str, port: int, context: ssl.SSLContext) -> None:
        """Store the address to connect to."""
        super().__init__(name, port, timeout=CALL_S, context=context)
        self.address, self.tls = connect, context

    def connect(self) -> None:
        """Connect."""
        raw = socket.create_connection((self.address, self.port), timeout=CALL_S)
        self.sock = self.tls.wrap_socket(raw, server_hostname=self.host)


class Service:
    """A service and its verdicts."""

    def __init__(self, params: dict[str, Any], role: str) -> None:
        """Store the parameters of `ARGUMENTS` except `unit`, and the role."""
        self.params, self.verdicts = params, Verdicts(role, params["host"])

    def call(self, method: str, path: str, body: Any = None, *, password: str | None = "") -> tuple[int, str]:
        """Return status and text of the answer, or 0 and the error if there is none.

        An empty password stands for the right one, None sends no password.
        """
        headers = {"Content-Type": "application/json"}
        if password is not None:
            login = f"{self.params['user']}:{password or self.params['password']}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        try:
            context = ssl.create_default_context(cafile=self.params["ca_file"])
            connection = NamedConnection(self.params["connect"], self.params["address"], self.params["port"], context)
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode("utf-8", "replace")
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            return 0, str(error) or type(error).__name__

    def read(self, path: str) -> Any:
        """Return a JSON answer, or None if there is none."""
        status, text = self.call("GET", path)
        try:
            return json.loads(text) if status == http.client.OK else None
        except ValueError:
            return None

    def check_access(self, path: str, unit: str) -> str:
        """Check that only HTTPS with the right password is accepted, and return the answer to it (empty if there is none)."""
        check_address(self.verdicts, self.params["connect"], self.params["host"], f"{self.verdicts.role}_bind_address")
        fix = f"read `journalctl -u {unit} -n 30`, then apply the phase monitoring again"
        status, text = self.call("GET", path)
        found = f"status {status}" if status else text
        self.verdicts.add("answers", "pass" if status == http.client.OK else "fail", expected="status 200", found=found, fix=fix)
        for check, password in (("refuses_wrong_password", "not-the-password"), ("refuses_no_password", None)):
            code, answer = self.call("GET", path, password=password)
            verdict = "pass" if code == UNAUTHORIZED else "fail" if code == http.client.OK else "unknown"
            self.verdicts.add(check, verdict, expected="status 401", found=f"status {code}" if code else answer, fix=fix)
        check_plain_text(self.verdicts, self.params["connect"], self.params["port"], path, fix)
        return text if status == http.client.OK else ""


def check_plain_text(verdicts: Verdicts, connect: str, port: int, path: str, fix: str) -> None:
    """Check that a service answers no request without TLS."""
    found = _answer_without_tls(connect, port, path)
    verdict = {"": "pass", "no answer": "unknown"}.get(found, "fail")
    verdicts.add("refuses_plain_text", verdict, expected="refused", found=found or "refused", fix=fix)


def _answer_without_tls(connect: str, port: int, path: str) -> str:
    """Return the status of a plain HTTP request; empty if the service refuses it, `no answer` if nothing answers."""
    connection = http.client.HTTPConnection(connect, port, timeout=CALL_S)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (ConnectionRefusedError, TimeoutError):
        return "no answer"
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    # Go's server answers plain HTTP on a TLS port with 400.
    return "" if status == http.client.BAD_REQUEST else f"status {status}"


# The arguments of every module that uses a Service.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "host": {"type": "str", "required": True},
    "connect": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "ca_file": {"type": "path", "required": True},
    "user": {"type": "str", "required": True},
    "password": {"type": "str", "required": True, "no_log": True},
    "unit": {"type": "str", "required": True},
}
