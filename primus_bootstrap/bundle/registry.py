"""Resolve image references and download charts from image registries, without a login.

Protocol: https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md
Anonymous tokens: https://distribution.github.io/distribution/spec/auth/token/
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
# The maximum size of a manifest that the specification allows registries to set.
_MANIFEST_BYTES = 4 << 20
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# https://github.com/helm/helm/blob/v3.18.4/pkg/registry/constants.go
_CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
FIX = "check that this machine can access the registry without a login, and that the registry has this version"


@dataclass(frozen=True, slots=True)
class Reference:
    """The parts of an image reference: `server` is the registry's name and port; `digest` is empty for a tag."""

    server: str
    repository: str
    tag: str
    digest: str

    @property
    def base(self) -> str:
        """The URL of the repository."""
        plain = (urlsplit(f"//{self.server}").hostname or "") in LOOPBACK
        # The registry of docker.io has another host name.
        server = "registry-1.docker.io" if self.server == "docker.io" else self.server
        return f"{'http' if plain else 'https'}://{server}/v2/{self.repository}"


def parse_reference(text: str) -> Reference:
    """Parse a reference by the rules of container engines: the default server is docker.io, the default tag `latest`."""
    name, _, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    has_server = bool(slash) and ("." in first or ":" in first or first == "localhost")
    server, path = (first, rest) if has_server else ("docker.io", name)
    repository, colon, tag = path.rpartition(":")
    repository, tag = (repository, tag) if colon else (path, "latest")
    official = server == "docker.io" and "/" not in repository
    return Reference(server, f"library/{repository}" if official else repository, tag, digest)


def digest_of(text: str) -> str:
    """Return the SHA-256 of the manifest to which a reference currently points.

    Raises:
        BundleError: The registry does not return it, or it has another digest than the reference.
    """
    reference = parse_reference(text)
    content = _manifest(reference, text)
    found = hashlib.sha256(content).hexdigest()
    if reference.digest and reference.digest != f"sha256:{found}":
        raise BundleError(f"{text}: the registry's manifest has the digest sha256:{found}", fix="correct the digest in hosts.yaml")
    return found


def chart_layer(url: str, version: str) -> tuple[str, int]:
    """Return the SHA-256 and size in bytes of a chart's archive, by `oci://` address and version.

    Raises:
        BundleError: The registry does not return the chart.
    """
    reference = _chart_reference(url, version)
    try:
        layers = json.loads(_manifest(reference, url)).get("layers", ())
        [layer] = [one for one in layers if one["mediaType"] == _CHART_LAYER]
        return str(layer["digest"]).removeprefix("sha256:"), int(layer["size"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{url} {version} is not a chart", fix="correct the address or the version in hosts.yaml") from error


def fetch_chart(url: str, version: str, sha256: str, part: Path) -> str:
    """Download the archive of a chart to a path; return the failure, or an empty string. The caller checks the checksum."""
    reference = _chart_reference(url, version)
    try:
        with _request(reference, f"blobs/sha256:{sha256}") as answer, part.open("wb") as stream:
            shutil.copyfileobj(answer, stream, _BLOCK_BYTES)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def fetch_blob(text: str, sha256: str, part: Path, *, is_manifest: bool) -> None:
    """Download a manifest or another part of an image to a path. The caller compares the checksum.

    Raises:
        BundleError: The registry does not return it.
    """
    try:
        with (
            _request(parse_reference(text), f"{'manifests' if is_manifest else 'blobs'}/sha256:{sha256}") as answer,
            part.open("wb") as stream,
        ):
            shutil.copyfileobj(answer, stream, _BLOCK_BYTES)
    except (OSError, ValueError) as error:
        raise BundleError(f"{text}: {error}", fix=FIX) from error


def _chart_reference(url: str, version: str) -> Reference:
    # A tag cannot contain a plus sign: Helm replaces it with an underscore.
    return parse_reference(f"{url.removeprefix('oci://')}:{version.replace('+', '_')}")


def _manifest(reference: Reference, shown: str) -> bytes:
    try:
        with _request(reference, f"manifests/{reference.digest or reference.tag}") as answer:
            content: bytes = answer.read(_MANIFEST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BundleError(f"{shown}: {error}", fix=FIX) from error
    if len(content) > _MANIFEST_BYTES:
        raise BundleError(f"{shown}: the registry's manifest is larger than {_MANIFEST_BYTES} bytes", fix=FIX)
    return content


def _request(reference: Reference, path: str) -> Any:
    """Open a path of a repository, with a token if the registry requires one."""
    try:
        return _open(f"{reference.base}/{path}", {"Accept": ", ".join(_MANIFESTS)})
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.lower().startswith("bearer "):
            raise
    token = _token(challenge, reference)
    return _open(f"{reference.base}/{path}", {"Accept": ", ".join(_MANIFESTS)}, token)


def _token(challenge: str, reference: Reference) -> str:
    parameters: Mapping[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = parameters.get("realm", "")
    if not realm.startswith(("https://", "http://")):
        raise ValueError("the registry requires a token and does not name a token server")
    query = {"service": parameters.get("service", ""), "scope": parameters.get("scope") or f"repository:{reference.repository}:pull"}
    with _open(f"{realm}?{urlencode(query)}", {}) as answer:
        response = json.loads(answer.read(_MANIFEST_BYTES))
    return str(response.get("token") or response.get("access_token") or "")


def _open(url: str, headers: Mapping[str, str], token: str = "") -> Any:
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - made of a reference, http on loopback alone
    if token:
        # Not sent after a redirect to a blob store: its URL is signed, and it rejects a second authorization.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        raise
