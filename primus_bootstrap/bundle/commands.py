"""Run apt, dpkg, pip and helm, and report a missing program or an exceeded time limit as a BundleError."""

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
    """Run a program to its end, with additional environment variables.

    Raises:
        BundleError: The program is not installed, or it exceeded the time limit.
    """
    log.debug("running %s", shlex.join(argv))
    try:
        return run_command(argv, timeout_s=timeout_s, env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})})
    except FileNotFoundError as error:
        raise BundleError(
            f"{argv[0]} is not installed on this machine", fix="run `bundle lock` and `bundle create` on Debian or Ubuntu"
        ) from error
    except TimeoutError as error:
        raise BundleError(
            f"{argv[0]} did not end within {timeout_s:g} s", fix="check the network connection of this machine, then run this again"
        ) from error


def failure(done: Completed) -> str:
    """Return the last lines of a program's output as one line."""
    return done.last_words(6).replace("\n", "; ")
