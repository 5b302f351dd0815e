"""Read a kubeconfig: server, certificate authority, and a token or client certificate. Credentials from programs are refused."""

from __future__ import annotations

import base64
import ssl
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from primus_bootstrap.core.errors import PlanError

_FIX = "write one with a server, its certificate authority, and a token or client certificate: docs/workloads.md"


@dataclass(frozen=True)
class Access:
    """The address of the API server, and the credentials. `token_file` is read at every request, because such tokens are renewed."""

    host: str
    port: int
    prefix: str
    context: ssl.SSLContext
    token: str = ""
    token_file: str = ""

    def headers(self) -> dict[str, str]:
        """Return the headers with the credentials."""
        token = Path(self.token_file).read_text("utf-8").strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def read_access(path: Path) -> Access:
    """Read the current context of a kubeconfig.

    Raises:
        PlanError: It cannot be read, or needs something that is not supported.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
        current = _named(data, "contexts", data["current-context"])["context"]
        cluster = _named(data, "clusters", current["cluster"])["cluster"]
        user = _named(data, "users", current["user"])["user"] or {}
        server = urlsplit(str(cluster["server"]))
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise PlanError(f"{path}: cannot be used as a kubeconfig: {type(error).__name__}: {error}", fix=_FIX) from error
    if server.scheme != "https" or not server.hostname:
        raise PlanError(f"{path}: the server is {cluster['server']}; only https:// is supported", fix=_FIX)
    if cluster.get("insecure-skip-tls-verify"):
        raise PlanError(f"{path}: insecure-skip-tls-verify is not supported", fix="add certificate-authority-data")
    for key in ("exec", "auth-provider", "username"):
        if user.get(key):
            raise PlanError(f"{path}: the user has {key}, which is not supported", fix=_FIX)
    try:
        context = _context(path.parent, cluster, user)
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: certificates cannot be used: {error}", fix=_FIX) from error
    token_file = str(user.get("tokenFile") or "")
    token_file = str(path.parent / token_file) if token_file else ""
    port = server.port or 443
    return Access(server.hostname, port, server.path.rstrip("/"), context, str(user.get("token") or ""), token_file)


def _named(data: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    for item in data[kind]:
        if item["name"] == name:
            return dict(item)
    raise KeyError(f"{kind} has no {name}")


def _context(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    """Return a context that trusts the cluster's certificate authority, or the system's if the kubeconfig names none."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    authority = _content(folder, cluster, "certificate-authority")
    if authority:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=authority.decode("ascii"))
    certificate, key = (_content(folder, user, name) for name in ("client-certificate", "client-key"))
    if certificate and key:
        with ExitStack() as stack:  # Python reads a key from a file only; other accounts cannot open these
            names = []
            for content in (certificate, key):
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="primus-watch-"))
                file.write(content)
                file.flush()
                names.append(file.name)
            context.load_cert_chain(*names)
    return context


def _content(folder: Path, table: dict[str, Any], name: str) -> bytes:
    """Return a value of the kubeconfig, or the content of a file that it names relative to its own folder."""
    if table.get(f"{name}-data"):
        return base64.b64decode(table[f"{name}-data"], validate=True)
    return (folder / str(table[name])).read_bytes() if table.get(name) else b""
