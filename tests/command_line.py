"""Run `primus-bootstrap` in the process of the tests: what a new one says, without the second that it takes to start."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn
from unittest import mock

from primus_bootstrap.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run_primus(*words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a verb with nobody at the terminal; return its exit code and what it printed.

    Args:
        words: The words of the command line after `primus-bootstrap`.
        folder: Where it runs; here without one.
        environment: What its environment has besides that of the tests.
    """
    shown, said = io.StringIO(), io.StringIO()
    code = 0
    with (
        contextlib.chdir(folder or "."),
        mock.patch.dict(os.environ, environment or {}),
        mock.patch.object(sys, "stdin", io.StringIO()),
        # A process that goes on for other tests keeps its garbage collection.
        mock.patch.object(gc, "freeze"),
        # A verb that becomes another program, such as ssh, would end the tests.
        mock.patch.object(os, "execvp", _run_instead),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(said),
    ):
        try:
            main([*words])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(words, code, shown.getvalue(), said.getvalue())


def _run_instead(_program: str, words: Sequence[str]) -> NoReturn:
    """Run the program that the process would become, and end the verb with its exit code."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    raise SystemExit(done.returncode)
