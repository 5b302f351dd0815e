"""The controller's client for the Kubernetes API server. It returns plain data: thousands of Nodes need no object each.

The only module that imports the library kubernetes: kubeconfigs of managed clusters get their credentials from a program (`exec`) or use a
proxy. `launch/watch/kube_api.py` is the client for nodes, where only the standard library is available.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import load_kube_config
from kubernetes.config.config_exception import ConfigException
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from primus_bootstrap.core.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# The name in managedFields of the fields that this project sets.
FIELD_MANAGER = "primus-bootstrap"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
# HTTP statuses from here on are errors.
REFUSED = 400
_TIMES = Timeout(connect=10.0, read=60.0)
PAGE = 500
# Requests in parallel: API servers allow a client a few dozen (API priority and fairness).
WORKERS = 16
_FIXES = {
    401: "the credential is invalid or has expired: fetch a new kubeconfig",
    403: "use the kubeconfig of an administrator of the cluster",
}


class ApiError(RunError):
    """The API server did not answer (`status` 0), or rejected the request with the HTTP status `status`."""

    def __init__(self, what: str, *, fix: str, status: int = 0, body: Mapping[str, Any] | None = None) -> None:
        """Store the status and the body of the answer."""
        super().__init__(what, fix=fix)
        self.status = status
        self.body = dict(body or {})


class Api(Protocol):
    """The interface of the client, which tests replace. `query` is the query of the URL. Every method raises ApiError."""

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return one object."""

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page."""

    def patch(self, path: str, body: Mapping[str, Any], *, kind: str = MERGE, dry_run: bool = False) -> dict[str, Any]:
        """Change an object and return it."""

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Delete an object."""


class Server:
    """The client for the API server of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read the kubeconfig, without a request.

        Raises:
            ApiError: The file is missing, or is not a kubeconfig.
        """
        self._kubeconfig = kubeconfig
        settings = Configuration()
        try:
            load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
        except (ConfigException, OSError, ValueError, TypeError, AttributeError) as error:
            fix = "set kubernetes_kubeconfig to the cluster's kubeconfig; Kubespray writes one to its artifacts folder"
            raise ApiError(f"the kubeconfig {kubeconfig} cannot be used: {error}", fix=fix) from error
        settings.connection_pool_maxsize = WORKERS
        self._client = ApiClient(settings)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return one object."""
        return self._request("GET", path, query=query)

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page."""
        more = ""
        while True:
            page = self._request("GET", path, query={**query, "limit": str(PAGE), **({"continue": more} if more else {})})
            yield from page["items"]
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return

    def patch(self, path: str, body: Mapping[str, Any], *, kind: str = MERGE, dry_run: bool = False) -> dict[str, Any]:
        """Change an object and return it; with APPLY, fields of other managers become this project's."""
        query = {"fieldManager": FIELD_MANAGER, **({"force": "true"} if kind == APPLY else {}), **({"dryRun": "All"} if dry_run else {})}
        return self._request("PATCH", path, query=query, body=dict(body), kind=kind)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""
        return self._request("POST", path, body=dict(body), query={"fieldManager": FIELD_MANAGER})

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Delete an object."""
        return self._request("DELETE", path, body=dict(body) if body else None)

    def _request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        headers, parameters = {"Accept": "application/json", "Content-Type": kind}, list((query or {}).items())
        self._client.update_params_for_auth(headers, parameters, ["BearerToken"])
        url = f"{self._client.configuration.host}{path}{f'?{urlencode(parameters)}' if parameters else ''}"
        content = None if body is None else json.dumps(body)
        try:
            # ApiClient's own method causes a DeprecationWarning of urllib3 for every error.
            answer = self._client.rest_client.pool_manager.request(
                method, url, body=content, headers=headers, timeout=_TIMES, retries=False
            )
            data = dict(json.loads(answer.data)) if answer.status < REFUSED else {}
        except (HTTPError, OSError, ValueError) as error:
            what = f"the API server {self._client.configuration.host} does not answer: {error}"
            fix = f"check that it runs and that this machine can access it (kubectl --kubeconfig {self._kubeconfig} version)"
            raise ApiError(what, fix=fix) from error
        if answer.status >= REFUSED:
            raise self._rejected(method, path, answer.status, answer.data.decode("utf-8", "replace"))
        return data

    def _rejected(self, method: str, path: str, status: int, text: str) -> ApiError:
        try:
            body = dict(json.loads(text))
        except (ValueError, TypeError):
            body = {"message": text[:300]}
        what = f"the API server rejected {method} {path} ({status}): {body.get('message', '')}"
        fix = f"{_FIXES.get(status, 'correct the cause and run this again')} ({self._kubeconfig})"
        return ApiError(what, fix=fix, status=status, body=body)
