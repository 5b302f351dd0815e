# ruff: noqa: INP001 (Ansible loads it by path)
"""Speak Harbor's REST API v2.0 over HTTPS: the only place that does. Paths and fields are those of its swagger.yaml, release 2.15.1."""

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

# A page of a list; the API allows 100 at most.
PAGE = 100


class HarborError(Exception):
    """Harbor refused a request, or did not answer it. `status` is 0 where there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        """Keep what is told to people, and the status."""
        super().__init__(message)
        self.status = status


class Harbor:
    """One Harbor, spoken to with one account."""

    def __init__(self, url: str, account: tuple[str, str] | None, ca_pem: str = "", timeout_s: float = 30) -> None:
        """Keep where it is; `ca_pem` is its authority, empty = those that this system knows."""
        self.url = url.rstrip("/")
        self.account = account
        self.timeout_s = timeout_s
        self._context = ssl.create_default_context(cadata=ca_pem or None)

    def get(self, path: str, **query: str) -> Any:
        """Return what a path of the API holds; None where it holds nothing."""
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
            HarborError: it was refused, or there was no answer.
        """
        return self._asked(method, f"{self.url}/api/v2.0{path}", self.account, body)

    def knows(self, name: str, password: str) -> bool:
        """Whether an account with this password may log in, asked as `docker login` asks.

        Raises:
            HarborError: Harbor did not say.
        """
        try:
            self._asked("GET", f"{self.url}/service/token?{urlencode({'service': 'harbor-registry'})}", (name, password))
        except HarborError as error:
            if error.status == 401:
                return False
            raise
        return True

    def token(self, repository: str, account: tuple[str, str] | None) -> str:
        """Return the token that Harbor gives for a repository to an account, or to anybody; it grants no more than it may.

        Raises:
            HarborError: Harbor gave none.
        """
        scope = urlencode({"service": "harbor-registry", "scope": f"repository:{repository}:pull,push"})
        return str(self._asked("GET", f"{self.url}/service/token?{scope}", account)["token"])

    def _asked(self, method: str, url: str, account: tuple[str, str] | None, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(url, method=method)  # noqa: S310 (the role's preflight lets http and https through)
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
                raise HarborError(f"{method} {url}: {error.code}, {reason_of(error.read())}", error.code) from error
        except OSError as error:
            raise HarborError(f"{method} {url}: {error}") from error
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise HarborError(f"{method} {url}: the answer is no JSON, so this is not Harbor's API") from error


def reason_of(text: bytes) -> str:
    """Return what an answer says went wrong, in Harbor's own words, shortened."""
    try:
        said = json.loads(text)["errors"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        said = text.decode("utf-8", "replace")
    return str(said).strip()[:300] or "without a reason"
