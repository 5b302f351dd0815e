"""Writing into a cluster's state folder: files that are whole or not there, and errors that say what to do."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.errors import PlanError, RunError


def write_whole(path: Path, text: str, *, errors: str = "strict") -> None:
    """Replace a file in one step, so that neither a reader nor a crash ever sees half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.touch(mode=0o600)
        with draft.open("w", encoding="utf-8", errors=errors) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def state_errors(kind: type[PlanError | RunError], path: Path) -> Iterator[None]:
    """Turn an OSError on the state folder (disk full, read-only, not ours) into an error that names path and cause.

    Args:
        kind: PlanError where nothing was touched yet, RunError from then on.
        path: what was about to be used, where the error itself names none.
    """
    try:
        yield
    except OSError as error:
        raise kind(
            f"cannot use {error.filename or path}: {error.strerror or error}",
            fix="free space there and make the folder writable, or set PRIMUS_STATE_DIR to a writable folder",
        ) from error
