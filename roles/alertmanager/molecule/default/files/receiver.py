"""Receive webhooks on port 9099 and mail on port 2525, and write a line for each alert."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

LOG = "/tmp/received"  # noqa: S108 (a test's own host)


def append(line: str) -> None:
    """Append a line to the log."""
    with open(LOG, "a", encoding="utf-8") as stream:  # noqa: PTH123
        stream.write(line + "\n")


class Webhook(BaseHTTPRequestHandler):
    """Receives webhooks."""

    def do_POST(self) -> None:
        """Log receiver, alert, status and login."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        login = base64.b64decode(
            self.headers.get("Authorization", "Basic ").split()[1:2][0] if "Authorization" in self.headers else ""
        ).decode()
        for alert in message["alerts"]:
            labels = alert["labels"]
            append(f"{self.path.split('/')[1]} {labels['alertname']} {labels.get('instance', '-')} {alert['status']} {login or '-'}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


class Mail(socketserver.StreamRequestHandler):
    """The part of SMTP that Alertmanager uses."""

    def handle(self) -> None:
        """Receive one mail."""
        self.wfile.write(b"220 test\r\n")
        data = False
        for raw in self.rfile:
            line = raw.decode("utf-8", "replace").strip()
            if data:
                data = line != "."
                if line.lower().startswith("subject:"):
                    append(f"mail {line}")
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
    HTTPServer(("127.0.0.1", 9099), Webhook).serve_forever()
