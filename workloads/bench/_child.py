"""Run another program for a benchmark. It is killed when this process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.common.errors import StalledError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# prctl(2): PR_SET_PDEATHSIG is 1, SIGKILL is 9. If the parent ended before the call, the parent's process id has changed.
_END_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit('the parent has ended'); os.execvp(sys.argv[2], sys.argv[2:])"
)


def run_child(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None, keep_output: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its error output. `keep_output` also captures its output, which is printed otherwise.

    Raises:
        StalledError: It exceeded the time limit and was killed.
    """
    try:
        return subprocess.run(
            [sys.executable, "-c", _END_WITH_PARENT, str(os.getpid()), *command],
            stdout=subprocess.PIPE if keep_output else None,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise StalledError(
            f"{Path(command[0]).name} exceeded its time limit of {timeout_s:g} s",
            fix="check this node's kernel log, or raise --timeout-s",
        ) from error
