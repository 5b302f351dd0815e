"""Requests to a Kubernetes API server: plain data in and out, so that a fleet's Nodes cost no object each."""

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

# Named in managedFields: what it owns is ours.
FIELD_MANAGER = "primus-bootstrap"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
# HTTP statuses from here on are refusals.
REFUSED = 400
_TIMES = Timeout(connect=10.0, read=60.0)
PAGE = 500
# How many requests go out at once: API servers let one client have a few dozen in flight (API priority and fairness).
WORKERS = 16
_FIXES = {
    401: "the credential in it is not accepted, or has expired: get a new one",
    403: "use the kubeconfig of an administrator of the cluster",
}


class ApiError(RunError):
    """The API server does not answer, or refuses; `status` is HTTP's, 0 where there was no answer."""

    def __init__(self, what: str, *, fix: str, status: int = 0, body: Mapping[str, Any] | None = None) -> None:
        """Keep what was answered."""
        super().__init__(what, fix=fix)
        self.status = status
        self.body = dict(body or {})


class Api(Protocol):
    """What is asked of an API server. `query` values are as in the URL; every method raises ApiError."""

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return one object."""

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page."""

    def patch(self, path: str, body: Mapping[str, Any], *, kind: str = MERGE, dry_run: bool = False) -> dict[str, Any]:
        """Change an object and return what it is then."""

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Delete an object."""


class Server:
    """An API server, reached with a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read the kubeconfig; contact nobody yet.

        Raises:
            ApiError: it is missing, or is none.
        """
        self._kubeconfig = kubeconfig
        settings = Configuration()
        try:
            load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
        except (ConfigException, OSError, ValueError, TypeError, AttributeError) as error:
            fix = "name the cluster's kubeconfig in kubernetes_kubeconfig; Kubespray leaves one in its artifacts folder"
            raise ApiError(f"the kubeconfig {kubeconfig} cannot be used: {error}", fix=fix) from error
        settings.connection_pool_maxsize = WORKERS
        self._client = ApiClient(settings)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return one object."""
        return self._ask("GET", path, query=query)

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page."""
        more = ""
        while True:
            page = self._ask("GET", path, query={**query, "limit": str(PAGE), **({"continue": more} if more else {})})
            yield from page["items"]
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return

    def patch(self, path: str, body: Mapping[str, Any], *, kind: str = MERGE, dry_run: bool = False) -> dict[str, Any]:
        """Change an object and return what it is then; `apply` takes fields over from whoever has them."""
        query = {"fieldManager": FIELD_MANAGER, **({"force": "true"} if kind == APPLY else {}), **({"dryRun": "All"} if dry_run else {})}
        return self._ask("PATCH", path, query=query, body=dict(body), kind=kind)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""
        return self._ask("POST", path, body=dict(body), query={"fieldManager": FIELD_MANAGER})

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Delete an object."""
        return self._ask("DELETE", path, body=dict(body) if body else None)

    def _ask(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        headers, words = {"Accept": "application/json", "Content-Type": kind}, list((query or {}).items())
        self._client.update_params_for_auth(headers, words, ["BearerToken"])
        url = f"{self._client.configuration.host}{path}{f'?{urlencode(words)}' if words else ''}"
        data = None if body is None else json.dumps(body)
        try:
            # Not by the client's own request: that warns of what urllib3 is about to drop whenever an answer is a refusal.
            answer = self._client.rest_client.pool_manager.request(method, url, body=data, headers=headers, timeout=_TIMES, retries=False)
            found = dict(json.loads(answer.data)) if answer.status < REFUSED else {}
        except (HTTPError, OSError, ValueError) as error:
            what = f"the API server {self._client.configuration.host} gives no answer: {error}"
            fix = f"see whether it runs and is reached from here; the kubeconfig is {self._kubeconfig}"
            raise ApiError(what, fix=fix) from error
        if answer.status >= REFUSED:
            raise self._refused(method, path, answer.status, answer.data.decode("utf-8", "replace"))
        return found

    def _refused(self, method: str, path: str, status: int, text: str) -> ApiError:
        try:
            body = dict(json.loads(text))
        except (ValueError, TypeError):
            body = {"message": text[:300]}
        what = f"the API server refuses {method} {path} ({status}): {body.get('message', '')}"
        fix = f"{_FIXES.get(status, 'mend what it names, then the same again')} ({self._kubeconfig})"
        return ApiError(what, fix=fix, status=status, body=body)
