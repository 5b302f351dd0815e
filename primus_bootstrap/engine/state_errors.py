"""Errors of a cluster's state folder, with a fix."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.core.errors import PlanError, RunError


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
