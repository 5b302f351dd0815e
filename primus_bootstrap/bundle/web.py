"""Download files over HTTP, and compute their checksums and their paths in a bundle."""

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


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_path(url: str, version: str = "") -> str:
    """Return the path of a file in a bundle: files/<server>/<path on the server>.

    A chart of an image registry has Helm's file name: <chart>-<version>.tgz.
    """
    parts = urlsplit(url)
    suffix = f"-{version}.tgz" if parts.scheme == "oci" else ""
    return f"files/{parts.hostname or 'local'}/{unquote(parts.path).lstrip('/')}{suffix}"


def is_safe(url: str) -> bool:
    """Return whether a connection to the address is protected by TLS or stays on this machine."""
    parts = urlsplit(url)
    return parts.scheme in ("https", "oci") or parts.hostname in LOOPBACK


def download(url: str, part: Path) -> str:
    """Download a file to a path; return the failure, or an empty string."""
    if not url.startswith(("http://", "https://")):
        return f"the scheme {url.partition(':')[0]} is not supported, only http and https"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_LIMIT_S) as answer, part.open("wb") as stream:  # noqa: S310 - checked above
            shutil.copyfileobj(answer, stream, _BLOCK_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        return str(error)
    except OSError as error:
        return str(error)
    return ""
