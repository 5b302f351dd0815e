"""Image registries, asked without a login: which content a reference means now, and charts that lie there.

The protocol is https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md; a token without a login is had as
https://distribution.github.io/distribution/spec/auth/token/ says. Nothing is believed that does not have the digest that it was asked by.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from primus_bootstrap.bundle.artifacts import BundleError
from primus_bootstrap.bundle.web import ANSWER_LIMIT_S, LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_BLOCK_BYTES = 1 << 20
# No manifest is larger: the limit that the specification lets registries set.
_MANIFEST_BYTES = 4 << 20
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# https://github.com/helm/helm/blob/v3.18.4/pkg/registry/constants.go
_CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_FIX = "see that this machine reaches the registry, that it answers without a login, and that the version is there"


@dataclass(frozen=True, slots=True)
class Reference:
    """An image's reference in full: `server` is the registry's name and port, `digest` empty where a tag says which."""

    server: str
    repository: str
    tag: str
    digest: str

    @property
    def base(self) -> str:
        """The address of the repository in the registry."""
        plain = (urlsplit(f"//{self.server}").hostname or "") in LOOPBACK
        # Docker's own images are served under another name than they bear.
        server = "registry-1.docker.io" if self.server == "docker.io" else self.server
        return f"{'http' if plain else 'https'}://{server}/v2/{self.repository}"


def parse_reference(text: str) -> Reference:
    """Return what a reference means by the rules of container engines: without a server it is Docker's, without a tag `latest`."""
    name, _, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    has_server = bool(slash) and ("." in first or ":" in first or first == "localhost")
    server, path = (first, rest) if has_server else ("docker.io", name)
    repository, colon, tag = path.rpartition(":")
    repository, tag = (repository, tag) if colon else (path, "latest")
    official = server == "docker.io" and "/" not in repository
    return Reference(server, f"library/{repository}" if official else repository, tag, digest)


def digest_of(text: str) -> str:
    """Ask which manifest a reference means now; return its SHA-256.

    Raises:
        BundleError: nobody says so.
    """
    reference = parse_reference(text)
    content = _manifest(reference, text)
    found = hashlib.sha256(content).hexdigest()
    if reference.digest and reference.digest != f"sha256:{found}":
        raise BundleError(f"{text}: the registry's manifest has the digest sha256:{found}", fix="correct the digest in hosts.yaml")
    return found


def chart_layer(url: str, version: str) -> tuple[str, int]:
    """Return SHA-256 and size in bytes of a chart's archive, by `oci://` address and version.

    Raises:
        BundleError: the registry does not say, or what it has is no chart.
    """
    reference = _chart_reference(url, version)
    try:
        layers = json.loads(_manifest(reference, url)).get("layers", ())
        [layer] = [one for one in layers if one["mediaType"] == _CHART_LAYER]
        return str(layer["digest"]).removeprefix("sha256:"), int(layer["size"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{url} {version} is no chart", fix="correct the address or the version in hosts.yaml") from error


def fetch_chart(url: str, version: str, sha256: str, part: Path) -> str:
    """Download the archive of a chart to a path; return what failed, or an empty text. Whoever calls compares the sum."""
    reference = _chart_reference(url, version)
    try:
        with _ask(reference, f"blobs/sha256:{sha256}") as answer, part.open("wb") as stream:
            shutil.copyfileobj(answer, stream, _BLOCK_BYTES)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _chart_reference(url: str, version: str) -> Reference:
    # A tag has no plus: Helm writes a line below for it.
    return parse_reference(f"{url.removeprefix('oci://')}:{version.replace('+', '_')}")


def _manifest(reference: Reference, shown: str) -> bytes:
    try:
        with _ask(reference, f"manifests/{reference.digest or reference.tag}") as answer:
            content: bytes = answer.read(_MANIFEST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BundleError(f"{shown}: {error}", fix=_FIX) from error
    if len(content) > _MANIFEST_BYTES:
        raise BundleError(f"{shown}: what the registry sends is no manifest", fix=_FIX)
    return content


def _ask(reference: Reference, what: str) -> Any:
    """Open an address of a repository, with a token where the registry wants one."""
    try:
        return _open(f"{reference.base}/{what}", {"Accept": ", ".join(_MANIFESTS)})
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.lower().startswith("bearer "):
            raise
    token = _token(challenge, reference)
    return _open(f"{reference.base}/{what}", {"Accept": ", ".join(_MANIFESTS)}, token)


def _token(challenge: str, reference: Reference) -> str:
    words: Mapping[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = words.get("realm", "")
    if not realm.startswith(("https://", "http://")):
        raise ValueError("the registry wants a login and does not say where")
    query = {"service": words.get("service", ""), "scope": words.get("scope") or f"repository:{reference.repository}:pull"}
    with _open(f"{realm}?{urlencode(query)}", {}) as answer:
        given = json.loads(answer.read(_MANIFEST_BYTES))
    return str(given.get("token") or given.get("access_token") or "")


def _open(url: str, headers: Mapping[str, str], token: str = "") -> Any:
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - made of a reference, http on loopback alone
    if token:
        # Not handed on to the store that a registry redirects to: that has a signature of its own, and refuses two.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        raise
