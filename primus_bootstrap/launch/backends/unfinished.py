"""The hidden folders in which an environment is built: .NAME-VERSION.XXXX beside the environment, and a lock file for all of them.

A killed installation leaves its folder. The next one of the same environment removes it: it holds the lock, so no process builds there.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def folder(final: Path) -> Iterator[Path]:
    """Create a folder in which the environment `final` can be built, and remove it at the end, with those of earlier installations.

    Raises:
        PlanError: Another process installs this environment.
    """
    with (final.parent / f".{final.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            fix = "wait until it has ended, then run this again"
            raise PlanError(f"another process installs {final}", fix=fix) from error
        remove(final)
        try:
            yield new_folder(final)
        finally:
            remove(final)


def new_folder(final: Path) -> Path:
    """Create a hidden folder of an environment."""
    created = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    created.chmod(0o755)
    return created


def remove(final: Path) -> None:
    """Remove all hidden folders of an environment; the caller holds the lock."""
    for path in final.parent.glob(f".{final.name}.*"):
        if path.is_dir():  # and not the lock file
            shutil.rmtree(path, ignore_errors=True)
