"""Run another program with a time limit and without a shell: the only module of the lab that starts processes."""

from __future__ import annotations

import logging
import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.lab.lab_values import LabError, MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

# conmon without a system log, and podman 5 on old control groups; neither explains a failure.
_NOISE = ("failed to connect to syslog", "Using cgroups-v1 which is deprecated")


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended; `code` is its exit status."""

    code: int
    out: str
    err: str


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes | None = None,
    stdout_file: Path | None = None,
    check: bool = True,
) -> Finished:
    """Run a program to its end.

    Args:
        argv: The program and its arguments; never a secret, since every user of the machine can read them.
        timeout_s: After this many seconds the program is killed.
        stdin: What the program reads; nothing by default.
        stdout_file: Where standard output goes instead of `out`.
        check: Whether an exit status other than 0 is an error.

    Raises:
        MachineError: The program is not installed.
        LabError: It failed or took too long.
    """
    log.debug("running %s", shlex.join(argv))
    try:
        with nullcontext() if stdout_file is None else stdout_file.open("wb") as out:
            done = run_command(argv, timeout_s=timeout_s, stdin=stdin or b"", stdout_file=out)
    except FileNotFoundError as error:
        raise MachineError(f"{argv[0]} is not installed", fix=f"install {argv[0]}, or run `make setup`") from error
    except TimeoutError as error:
        raise LabError(
            f"`{shlex.join(argv)}` did not end within {timeout_s:g} s",
            fix="look at the machine's load and free memory, then run the command again",
        ) from error
    finished = Finished(done.code, done.stdout, _clean(done.stderr))
    if check and finished.code:
        raise LabError(
            f"`{shlex.join(argv)}` ended with {finished.code}: {last_lines(finished.err or finished.out)}",
            fix="run that command by hand to see more; `primus-bootstrap lab down` and `lab up` start afresh",
        )
    return finished


def last_lines(text: str, count: int = 6) -> str:
    """Return the last lines of an output, where programs say what went wrong."""
    return "\n".join(text.strip().splitlines()[-count:]) or "(it said nothing)"


def _clean(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not any(noise in line for noise in _NOISE))
