"""Send requests to the API server with the kubelet's kubeconfig of this host.

Standard library only: worker nodes have no kubectl and no Python package `kubernetes`, and not always PyYAML, which the watcher needs.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KUBELET_CONF = Path("/etc/kubernetes/kubelet.conf")
ANSWER_S = 30
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
# kubeadm writes one cluster and one user, one key per line. The standard library has no YAML.
_LINE = re.compile(
    r"^\s*-?\s*(server|certificate-authority(?:-data)?|client-certificate(?:-data)?|client-key(?:-data)?):\s*(\S+)\s*$",
    re.MULTILINE,
)


class RequestError(Exception):
    """The server refused a request or did not answer; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        """Store the message and the status."""
        super().__init__(message)
        self.status = status


def read_kubeconfig(path: Path = KUBELET_CONF) -> dict[str, str]:
    """Return the settings of a kubeconfig as kubeadm writes it: server, authority, and the user's certificate and key.

    Raises:
        RequestError: It cannot be read, or names no server.
    """
    try:
        found = {key: value.strip("'\"") for key, value in _LINE.findall(path.read_text("utf-8"))}
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    if "server" not in found:
        raise RequestError(f"{path} names no server")
    return found


class Server:
    """The API server of a kubeconfig, used as its user or with a token instead."""

    def __init__(self, config: dict[str, str], token: str = "") -> None:
        """Prepare the connection; nothing is contacted yet."""
        self._server = config["server"].rstrip("/")
        self._headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        try:
            trust = _trust(config)
            if not token:
                trust.load_cert_chain(config["client-certificate"], config.get("client-key"))
        except (OSError, ValueError, KeyError) as error:
            raise RequestError(f"the certificates of the kubeconfig cannot be used: {error!r}") from error
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        if urlsplit(self._server).scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=trust))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        """Send one request and return the response.

        Raises:
            RequestError: The server refuses it or does not answer.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the kubeconfig's own server
            self._server + path, data=data, method=method, headers={**self._headers, "Content-Type": kind}
        )
        try:
            with self._opener.open(request, timeout=ANSWER_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read(2000).decode("utf-8", "replace")
            raise RequestError(f"{method} {path}: {error.code} {_message(text)}", error.code) from error
        except (OSError, ValueError) as error:
            raise RequestError(f"{self._server} does not answer: {error}") from error
        return dict(found)


def _trust(config: dict[str, str]) -> ssl.SSLContext:
    if "certificate-authority-data" in config:
        return ssl.create_default_context(cadata=base64.b64decode(config["certificate-authority-data"]).decode())
    return ssl.create_default_context(cafile=config.get("certificate-authority"))


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
