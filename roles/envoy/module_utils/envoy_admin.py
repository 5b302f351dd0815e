# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Send HTTP requests to Envoy's Unix sockets: the admin interface, and the listener for tests of rate limits."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

TIMEOUT_S = 20.0
# A configuration with many certificates has a few MiB.
MAX_BYTES = 64 << 20


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float = TIMEOUT_S) -> None:
        """Store the path of the socket."""
        super().__init__("envoy", timeout=timeout_s)
        self.path, self.timeout_s = path, timeout_s

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout_s)
        self.sock.connect(self.path)


def read_page(path: str, page: str) -> Any:
    """Return the JSON of a page of the admin interface.

    Args:
        path: Path of the admin socket.
        page: Path of the page, for example `/config_dump`.

    Raises:
        OSError: Nothing answers on the socket, or the answer is an error or not HTTP.
        ValueError: The answer is not JSON, or larger than `MAX_BYTES`.
    """
    connection = UnixConnection(path)
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise OSError(f"{path} answers {answer.status} to {page}")
        content = answer.read(MAX_BYTES + 1)
    except http.client.HTTPException as error:
        raise OSError(f"{path}: {error!r}") from error
    finally:
        connection.close()
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path}: the answer to {page} is larger than {MAX_BYTES} bytes")
    return json.loads(content)
