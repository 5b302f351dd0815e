"""Run apt, dpkg and pip with a time limit and without a shell: the only module of the bundle that starts processes."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.bundle.values import BundleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended; `code` is its exit status."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """The last lines that it wrote, as one: what people need to read of a failure."""
        return "; ".join((self.err.strip() or self.out.strip()).splitlines()[-6:])


def run(argv: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a program to its end.

    Raises:
        BundleError: It is not installed, or took too long.
    """
    log.debug("running %s", shlex.join(argv))
    settings = {**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})}
    try:
        done = subprocess.run(
            argv, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise BundleError(f"{argv[0]} is not installed on this machine", fix="lock and create on Debian or Ubuntu") from error
    except subprocess.TimeoutExpired as error:
        raise BundleError(
            f"{argv[0]} did not end within {timeout_s:g} s", fix="see whether its source answers, then run this again"
        ) from error
    return Finished(done.returncode, done.stdout, done.stderr)
