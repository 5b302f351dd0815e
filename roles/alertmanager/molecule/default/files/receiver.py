"""A receiver for the test: takes webhooks on 9099 and mail on 2525, and writes a line for each alert that it is told of."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

LOG = "/tmp/received"  # noqa: S108 (a test's own host)


def note(line: str) -> None:
    """Write a line."""
    with open(LOG, "a", encoding="utf-8") as stream:  # noqa: PTH123
        stream.write(line + "\n")


class Hook(BaseHTTPRequestHandler):
    """A webhook."""

    def do_POST(self) -> None:
        """Note who was told of which alert, and as whom Alertmanager came."""
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        login = base64.b64decode(
            self.headers.get("Authorization", "Basic ").split()[1:2][0] if "Authorization" in self.headers else ""
        ).decode()
        for alert in told["alerts"]:
            labels = alert["labels"]
            note(f"{self.path.split('/')[1]} {labels['alertname']} {labels.get('instance', '-')} {alert['status']} {login or '-'}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as Alertmanager speaks."""

    def handle(self) -> None:
        """Take one mail."""
        self.wfile.write(b"220 test\r\n")
        data = False
        for raw in self.rfile:
            line = raw.decode("utf-8", "replace").strip()
            if data:
                data = line != "."
                if line.lower().startswith("subject:"):
                    note(f"mail {line}")
                if not data:
                    self.wfile.write(b"250 ok\r\n")
            elif line.upper().startswith("DATA"):
                data = True
                self.wfile.write(b"354 go on\r\n")
            elif line.upper().startswith("QUIT"):
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 ok\r\n")


if __name__ == "__main__":
    threading.Thread(target=socketserver.ThreadingTCPServer(("127.0.0.1", 2525), Mail).serve_forever, daemon=True).start()
    HTTPServer(("127.0.0.1", 9099), Hook).serve_forever()
