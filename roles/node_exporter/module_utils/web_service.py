# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""A web service of this host as its clients meet it: HTTPS under its own name, with the password, a wrong one and none, and without TLS."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from typing import Any

SCHEMA = "primus.verdict/1"
CALL_S = 15.0
UNAUTHORIZED = 401


class Pinned(http.client.HTTPSConnection):
    """A connection to one address under the name of another: what the certificate must name is what clients in the cluster use."""

    def __init__(self, connect: str, name: str, port: int, context: ssl.SSLContext) -> None:
        """Keep where to connect to."""
        super().__init__(name, port, timeout=CALL_S, context=context)
        self.at, self.tls = connect, context

    def connect(self) -> None:
        """Connect."""
        raw = socket.create_connection((self.at, self.port), timeout=CALL_S)
        self.sock = self.tls.wrap_socket(raw, server_hostname=self.host)


class Service:
    """A service, and the verdicts on it."""

    def __init__(self, wanted: dict[str, Any], kind: str) -> None:
        """Keep how to call it: `connect`, `address`, `port`, `ca_file`, `user`, `password`, `host`; `kind` begins each check's name."""
        self.wanted, self.kind = wanted, kind
        self.verdicts: list[dict[str, Any]] = []

    def call(self, method: str, path: str, body: Any = None, *, password: str | None = "") -> tuple[int, str]:
        """Return status and text; 0 and the reason where there was no answer. An empty password is the right one, None is none."""
        one = self.wanted
        headers = {"Content-Type": "application/json"}
        if password is not None:
            words = f"{one['user']}:{password or one['password']}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(words).decode()}"
        try:
            context = ssl.create_default_context(cafile=one["ca_file"])
            connection = Pinned(one["connect"], one["address"], one["port"], context)
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode("utf-8", "replace")
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            return 0, str(error) or type(error).__name__

    def read(self, path: str) -> Any:
        """Return the `data` of an answer in JSON, None where there is none."""
        status, text = self.call("GET", path)
        try:
            return json.loads(text)["data"] if status == http.client.OK else None
        except (ValueError, KeyError, TypeError):
            return None

    def judge(self, check: str, verdict: str, *, expected: str, found: str, reason: str = "", fix: str = "", device: str = "") -> None:  # noqa: PLR0913 (the record's fields)
        """Record one verdict."""
        record = {"check": f"{self.kind}.{check}", "host": self.wanted["host"], "verdict": verdict, "expected": expected, "found": found}
        bad = {} if verdict == "pass" else {"reason": reason or f"expected {expected}, found {found}", "fix": fix}
        named = {"device": device} if device else {}
        source = f"roles/{self.kind}/meta/argument_specs.yml"
        self.verdicts.append({**record, **named, **bad, "source": source, "started": time.time(), "seconds": 0.0, "schema": SCHEMA})

    def look_at_access(self, path: str, unit: str) -> str:
        """See that the right password is let in, and a wrong one, none, and plain text are not; return what the right one was told."""
        fix = f"see `journalctl -u {unit} -n 30`, then apply the phase monitoring again"
        status, text = self.call("GET", path)
        found = f"status {status}" if status else text
        self.judge("answers", "pass" if status == http.client.OK else "fail", expected="status 200", found=found, fix=fix)
        for check, password in (("refuses_wrong_password", "not-the-password"), ("refuses_no_password", None)):
            code, said = self.call("GET", path, password=password)
            verdict = "pass" if code == UNAUTHORIZED else "fail" if code == http.client.OK else "unknown"
            self.judge(check, verdict, expected="status 401", found=f"status {code}" if code else said, fix=fix)
        plain = self._without_tls(path)
        verdict = {"": "pass", "no answer": "unknown"}.get(plain, "fail")
        self.judge("refuses_plain_text", verdict, expected="refused", found=plain or "refused", fix=fix)
        return text if status == http.client.OK else ""

    def _without_tls(self, path: str) -> str:
        """Return nothing where plain HTTP is refused, else what it was answered."""
        connection = http.client.HTTPConnection(self.wanted["connect"], self.wanted["port"], timeout=CALL_S)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except (ConnectionRefusedError, TimeoutError):
            return "no answer"
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()
        # Go's server tells plain HTTP on a TLS port with 400.
        return "" if status == http.client.BAD_REQUEST else f"status {status}"

    def end(self, module: Any) -> None:
        """Hand the verdicts over; the module fails where one of them is a fail."""
        result = {"changed": False, "verdicts": self.verdicts, "stdout": json.dumps({"verdicts": self.verdicts})}
        failed = [
            f"{one['check']} {one.get('device', '')}".strip() + f": {one['reason']}. Fix: {one['fix']}"
            for one in self.verdicts
            if one["verdict"] == "fail"
        ]
        if failed:
            module.fail_json(msg="; ".join(failed), **result)
        module.exit_json(**result)


# What every module that uses a Service is told.
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
