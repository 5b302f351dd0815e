"""Run a program for the lab and report its failure as a LabError."""

from __future__ import annotations

import logging
import shlex
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import Completed, run_command
from primus_bootstrap.lab.lab_values import LabError, MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

# Warnings of conmon without a system log and of podman 5 on cgroups v1: they never explain a failure.
_NOISE = ("failed to connect to syslog", "Using cgroups-v1 which is deprecated")


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes = b"",
    stdout_file: Path | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end; the arguments are those of `run_command`.

    Args:
        argv: The program and its arguments.
        timeout_s: The time limit.
        stdin: The program's standard input.
        stdout_file: The file that receives standard output.
        check: Whether an exit code other than 0 is an error.

    Raises:
        MachineError: The program is not installed.
        LabError: The program failed or exceeded the time limit.
    """
    log.debug("running %s", shlex.join(argv))
    try:
        with nullcontext() if stdout_file is None else stdout_file.open("wb") as out:
            done = run_command(argv, timeout_s=timeout_s, stdin=stdin, stdout_file=out)
    except FileNotFoundError as error:
        raise MachineError(f"{argv[0]} is not installed", fix=f"apt-get install {argv[0]}, or run `make setup` in a checkout") from error
    except TimeoutError as error:
        raise LabError(
            f"`{shlex.join(argv)}` did not end within {timeout_s:g} s",
            fix="check the load (`uptime`) and the free memory (`free`) of this machine, then run the command again",
        ) from error
    done = replace(done, stderr="\n".join(line for line in done.stderr.splitlines() if not any(noise in line for noise in _NOISE)))
    if check and done.code:
        raise LabError(
            f"`{shlex.join(argv)}` failed with exit code {done.code}: {done.last_words(6) or 'no output'}",
            fix="run that command by hand to see more, or recreate the lab: `lab down`, then `lab up`, with the same --name and --dir",
        )
    return done
