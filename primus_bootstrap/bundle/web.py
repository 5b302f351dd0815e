"""Download a file over HTTP to a path: the only module of the bundle, beside those of apt, pip and registries, that reaches a server."""

from __future__ import annotations

import hashlib
import shutil
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 1 << 20
ANSWER_LIMIT_S = 60.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_path(url: str, version: str = "") -> str:
    """Return where a file lies in a bundle: under the name of its server, with its path as it is there.

    A chart of an image registry gets the name that Helm gives it: <chart>-<version>.tgz.
    """
    parts = urlsplit(url)
    ending = f"-{version}.tgz" if parts.scheme == "oci" else ""
    return f"files/{parts.hostname or 'local'}/{unquote(parts.path).lstrip('/')}{ending}"


def is_safe(url: str) -> bool:
    """Tell whether what comes from an address is what its server sent: by TLS, or from this machine itself."""
    parts = urlsplit(url)
    return parts.scheme in ("https", "oci") or parts.hostname in LOOPBACK


def download(url: str, part: Path) -> str:
    """Download a file to a path; return what failed, or an empty text."""
    if not url.startswith(("http://", "https://")):
        return f"{url.partition(':')[0]} is no way to download a file; http and https are"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_LIMIT_S) as answer, part.open("wb") as stream:  # noqa: S310 - judged above
            shutil.copyfileobj(answer, stream, _BLOCK_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        return str(error)
    except OSError as error:
        return str(error)
    return ""
