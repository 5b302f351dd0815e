"""Connect to an API server with a kubeconfig, or fail within seconds with the reason."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import logging
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
from urllib3.exceptions import HTTPError

logging.getLogger("urllib3").setLevel(logging.ERROR)

CONNECT_S = 5.0
REQUEST_S = 60.0
MANAGER = "primus-bootstrap"


class ReachError(Exception):
    """The API server cannot be used; the message has the reason and a fix."""


def read_kubeconfig(path: str) -> dict[str, Any]:
    """Return the content of a kubeconfig.

    Raises:
        ReachError: The file does not exist or is not a kubeconfig.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ReachError(
            f"no kubeconfig at {path}: {error.strerror}. Fix: correct kubernetes_kubeconfig, or apply Kubernetes first"
        ) from None
    except (UnicodeDecodeError, yaml.YAMLError):
        data = None
    if not isinstance(data, dict) or not data.get("clusters") or not data.get("contexts"):
        raise ReachError(f"{path} is no kubeconfig. Fix: name a copy of /etc/kubernetes/admin.conf of a control plane")
    return data


def context_of(data: dict[str, Any], path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return cluster and user of the current context.

    Raises:
        ReachError: The file does not have them.
    """
    named = {kind: {one["name"]: one.get(kind[:-1]) or {} for one in data.get(kind) or ()} for kind in ("clusters", "contexts", "users")}
    context = named["contexts"].get(data.get("current-context"))
    if context is None or context.get("cluster") not in named["clusters"]:
        raise ReachError(f"{path}: current-context {data.get('current-context')!r} names no cluster. Fix: kubectl config use-context NAME")
    return named["clusters"][context["cluster"]], named["users"].get(context.get("user"), {})


def days_left(user: dict[str, Any], folder: Path, now: dt.datetime) -> float | None:
    """Return for how many days the client certificate is still valid; None if the user has no readable certificate."""
    pem = b""
    with contextlib.suppress(OSError, ValueError):
        if user.get("client-certificate-data"):
            pem = base64.b64decode(user["client-certificate-data"])
        elif user.get("client-certificate"):
            pem = (folder / user["client-certificate"]).read_bytes()
        if pem:
            return days_valid(pem, now)
    return None


def days_valid(pem: bytes, now: dt.datetime) -> float:
    """Return for how many days a certificate is still valid.

    Raises:
        ValueError: It cannot be read.
    """
    return float((x509.load_pem_x509_certificate(pem).not_valid_after_utc - now).total_seconds() / 86400)


def api_client(path: str) -> client.ApiClient:
    """Return a client for a kubeconfig, which does not retry. The server is not contacted yet.

    Raises:
        ReachError: The file cannot be used, or its certificate has expired.
    """
    data = read_kubeconfig(path)
    cluster, user = context_of(data, path)
    left = days_left(user, Path(path).parent, dt.datetime.now(dt.UTC))
    if left is not None and left <= 0:
        raise ReachError(
            f"{path}: the client certificate expired {-left:.1f} days ago. Fix: renew the certificates of the control plane "
            "(`primus-bootstrap renew certificates`, or the provider of the cluster) and copy its new /etc/kubernetes/admin.conf"
        )
    settings = client.Configuration()
    try:
        config.load_kube_config(config_file=path, client_configuration=settings)
    except config.ConfigException as error:
        raise ReachError(f"{path}: {error}. Fix: correct the kubeconfig; `kubectl --kubeconfig {path} version` shows the same") from None
    settings.retries = False
    result = client.ApiClient(settings)
    result.primus_server = cluster.get("server", "")
    return result


def ask(api: client.ApiClient, path: str, method: str = "GET", body: Any = None, **query: Any) -> Any:
    """Send one request and return the server's response as data; `ask_text` raises the same errors."""
    return json.loads(ask_text(api, path, method, body, **query))


def ask_text(api: client.ApiClient, path: str, method: str = "GET", body: Any = None, **query: Any) -> str:
    """Send one request and return the server's response.

    Raises:
        ReachError: The server does not answer, or does not accept the user.
    """
    try:
        response = api.call_api(
            path, method, query_params=list(query.items()), body=body, auth_settings=["BearerToken"], response_type="object",
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            _preload_content=False, _return_http_data_only=True, _request_timeout=(CONNECT_S, REQUEST_S),
        )  # fmt: skip
    except ApiException as error:
        if error.status == 401:
            raise ReachError(f"{api.primus_server} does not accept the user of the kubeconfig (401). Fix: fetch a new admin.conf") from None
        raise
    except HTTPError as error:
        raise ReachError(f"the API server {api.primus_server} does not answer: {_short(error)}. Fix: check that it runs and that this "
                         "machine can reach it; the address is in the kubeconfig") from None  # fmt: skip
    return str(response.data.decode())


def _short(error: BaseException) -> str:
    # "HTTPSConnectionPool(...): Max retries exceeded with url: ... (Caused by ...('<...>: Failed to ...'))": the cause is at the end.
    text = str(error)
    return text.rpartition(": ")[2].strip("'\")(") or type(error).__name__


def server_version(api: client.ApiClient) -> tuple[int, int]:
    """Return the server's version as (major, minor)."""
    answer = ask(api, "/version")
    return int(answer["major"]), int("".join(letter for letter in answer["minor"] if letter.isdigit()))


def dynamic_client(api: client.ApiClient) -> dynamic.DynamicClient:
    """Return a client for all kinds of the server."""
    return dynamic.DynamicClient(api, discoverer=dynamic.LazyDiscoverer)


def resource_of(kinds: dynamic.DynamicClient, api_version: str, kind: str) -> Any:
    """Return the server's resource for a kind, or None if it has no such kind. A kind that was just added is found."""
    for attempt in (1, 2):
        try:
            return kinds.resources.get(api_version=api_version, kind=kind)
        except ResourceNotFoundError:
            if attempt == 1:
                kinds.resources.invalidate_cache()
    return None


def reason_of(error: ApiException | DynamicApiError) -> str:
    """Return the error message of the server."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        return str(json.loads(body).get("message") or error.reason)
    except (ValueError, AttributeError):
        return body or str(error.reason)
