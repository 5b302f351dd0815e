"""The package repository of a bundle, as apt reads it: a flat folder with `Packages` and `Release`, the same for the same packages."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from primus_bootstrap.bundle.artifacts import BundleError
from primus_bootstrap.bundle.program import run, why

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from primus_bootstrap.bundle.artifacts import Locked, Target

_LIMIT_S = 60.0
_DATE = "Thu, 01 Jan 1970 00:00:00 UTC"


def packages_text(items: Sequence[Locked], folder: Path) -> str:
    """Return the index of packages that lie in a bundle: what each says of itself, its size, and the sum that the lock knows.

    Raises:
        BundleError: a package cannot be read.
    """
    return "\n".join(_stanza(item, folder / item.path) for item in sorted(items, key=lambda item: item.path))


def _stanza(item: Locked, path: Path) -> str:
    done = run(["dpkg-deb", "--field", str(path)], timeout_s=_LIMIT_S)
    if done.code:
        raise BundleError(f"{path} is no package: {why(done)}", fix="remove it, then run `primus-bootstrap bundle create` again")
    return f"{done.stdout.strip()}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {item.sha256}\n"


def release_text(target: Target, packages: str) -> str:
    """Return what apt reads first. It has no signature: it reaches hosts over SSH. apt wants a date: it is the same for all."""
    content = packages.encode()
    return (
        f"Origin: primus-bootstrap\nLabel: airgap\nSuite: {target.release}\nCodename: {target.release}\n"
        f"Architectures: {target.architecture}\n"
        f"Date: {_DATE}\nSHA256:\n {hashlib.sha256(content).hexdigest()} {len(content)} Packages\n"
    )
