"""Run apt, dpkg and pip with a time limit and without a shell: the only module of the bundle that starts processes."""

from __future__ import annotations

import logging
import os
import shlex
from typing import TYPE_CHECKING

from primus_bootstrap.bundle.artifacts import BundleError
from primus_bootstrap.core.commands import Completed, run_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)


def run(argv: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Completed:
    """Run a program to its end.

    Raises:
        BundleError: It is not installed, or took too long.
    """
    log.debug("running %s", shlex.join(argv))
    settings = {**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})}
    try:
        done = run_command(argv, timeout_s=timeout_s, env=settings)
    except FileNotFoundError as error:
        raise BundleError(f"{argv[0]} is not installed on this machine", fix="lock and create on Debian or Ubuntu") from error
    except TimeoutError as error:
        raise BundleError(
            f"{argv[0]} did not end within {timeout_s:g} s", fix="see whether its source answers, then run this again"
        ) from error
    return done


def why(done: Completed) -> str:
    """Return the last lines that a program wrote, in one line: what people need to read of a failure."""
    return done.last_words(6).replace("\n", "; ")
