# ruff: noqa: INP001 (Ansible loads it by path)
"""A client for Harbor's REST API v2.0. Paths and fields are those of its swagger.yaml, release 2.15.1."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

# Entries per page of a list; the API allows at most 100.
PAGE = 100


class HarborError(Exception):
    """Harbor rejected a request, or did not answer; then `status` is 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        """Store message and status."""
        super().__init__(message)
        self.status = status


class Harbor:
    """A connection to Harbor with one account."""

    def __init__(self, url: str, account: tuple[str, str] | None, ca_pem: str = "", timeout_s: float = 30) -> None:
        """Store the parameters; `ca_pem` is the CA certificate, empty = the system's."""
        self.url = url.rstrip("/")
        self.account = account
        self.timeout_s = timeout_s
        self._context = ssl.create_default_context(cadata=ca_pem or None)

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON value at a path of the API; None if the answer is empty."""
        return self.send("GET", path + (f"?{urlencode(query)}" if query else ""))

    def every(self, path: str, **query: str) -> list[Any]:
        """Return a whole list, page after page."""
        found: list[Any] = []
        while True:
            page = self.get(path, page=str(len(found) // PAGE + 1), page_size=str(PAGE), **query) or []
            found += page
            if len(page) < PAGE:
                return found

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request and return its answer.

        Raises:
            HarborError: It was rejected, or there was no answer.
        """
        return self._request(method, f"{self.url}/api/v2.0{path}", self.account, body)

    def accepts(self, name: str, password: str) -> bool:
        """Return whether an account can log in with this password, as with `docker login`.

        Raises:
            HarborError: There was no answer.
        """
        try:
            self._request("GET", f"{self.url}/service/token?{urlencode({'service': 'harbor-registry'})}", (name, password))
        except HarborError as error:
            if error.status == 401:
                return False
            raise
        return True

    def token(self, repository: str, account: tuple[str, str] | None) -> str:
        """Return the token for a repository and an account (None: anonymous); it has only the rights of the account.

        Raises:
            HarborError: Harbor returned none.
        """
        scope = urlencode({"service": "harbor-registry", "scope": f"repository:{repository}:pull,push"})
        return str(self._request("GET", f"{self.url}/service/token?{scope}", account)["token"])

    def _request(self, method: str, url: str, account: tuple[str, str] | None, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(url, method=method)  # noqa: S310 (harbor_api_url is http or https)
        if account:
            request.add_header("Authorization", "Basic " + base64.b64encode(":".join(account).encode()).decode("ascii"))
        request.add_header("Accept", "application/json")
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, data, self.timeout_s, context=self._context) as answer:  # noqa: S310
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise HarborError(f"{method} {url}: {error.code}, {error_message(error.read())}", error.code) from error
        except OSError as error:
            raise HarborError(f"{method} {url}: {error}") from error
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise HarborError(f"{method} {url}: the answer is not JSON, so this is not Harbor's API") from error


def error_message(text: bytes) -> str:
    """Return Harbor's error message from an answer, shortened."""
    try:
        message = json.loads(text)["errors"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        message = text.decode("utf-8", "replace")
    return str(message).strip()[:300] or "no reason given"
