# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Run programs of the host whose output is read: in English, without questions, with a time limit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ansible.module_utils.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

# As in a shell and in timeout(1).
NOT_RUN, TIMED_OUT = 127, 124


def run_program(argv: Sequence[str], *, timeout_s: float = 300.0) -> tuple[int, str]:
    """Return the exit code of a program and its output, stdout first; 127 if it cannot be run, 124 if it did not end in time."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = run_command(argv, timeout_s=timeout_s, env=environment)
    except FileNotFoundError:
        return NOT_RUN, f"{argv[0]} is not installed"
    except TimeoutError as error:
        return TIMED_OUT, str(error)
    except OSError as error:
        return NOT_RUN, f"{argv[0]} cannot be run: {error.strerror or error}"
    return done.code, (done.stdout + done.stderr).strip()
