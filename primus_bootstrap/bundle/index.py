"""Generate the apt repository of a bundle: a flat folder with reproducible `Packages` and `Release` files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from primus_bootstrap.bundle.artifacts import BundleError
from primus_bootstrap.bundle.commands import failure, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from primus_bootstrap.bundle.artifacts import Locked, Target

_LIMIT_S = 60.0
_DATE = "Thu, 01 Jan 1970 00:00:00 UTC"


def packages_text(items: Sequence[Locked], folder: Path) -> str:
    """Return the text of `Packages`: the fields of each package in a bundle, its size, and its checksum from the lock.

    Raises:
        BundleError: A package cannot be read.
    """
    return "\n".join(_stanza(item, folder / item.path) for item in sorted(items, key=lambda item: item.path))


def _stanza(item: Locked, path: Path) -> str:
    done = run(["dpkg-deb", "--field", str(path)], timeout_s=_LIMIT_S)
    if done.code:
        raise BundleError(f"{path} is not a package: {failure(done)}", fix=f"rm {path}, then run `primus-bootstrap bundle create` again")
    return f"{done.stdout.strip()}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {item.sha256}\n"


def release_text(target: Target, packages: str) -> str:
    """Return the text of `Release`, with a constant date and without a signature: it is copied to hosts over SSH."""
    content = packages.encode()
    return (
        f"Origin: primus-bootstrap\nLabel: airgap\nSuite: {target.release}\nCodename: {target.release}\n"
        f"Architectures: {target.architecture}\n"
        f"Date: {_DATE}\nSHA256:\n {hashlib.sha256(content).hexdigest()} {len(content)} Packages\n"
    )
