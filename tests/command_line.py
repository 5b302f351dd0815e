"""Runs `primus-bootstrap` in the process of the tests, which saves the second that a new process needs to start."""

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
    """Run a verb without a terminal; return its exit code and output.

    Args:
        words: The command line after `primus-bootstrap`.
        folder: The working folder; the current one by default.
        environment: Additional environment variables.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    code = 0
    with (
        contextlib.chdir(folder or "."),
        mock.patch.dict(os.environ, environment or {}),
        mock.patch.object(sys, "stdin", io.StringIO()),
        # The process continues with other tests, so garbage collection stays as it is.
        mock.patch.object(gc, "freeze"),
        # A verb that replaces the process, such as ssh, would end the tests.
        mock.patch.object(os, "execvp", _run_instead),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main([*words])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(words, code, stdout.getvalue(), stderr.getvalue())


def _run_instead(_program: str, words: Sequence[str]) -> NoReturn:
    """Run a program as a child instead of replacing the process, and end the verb with its exit code."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    raise SystemExit(done.returncode)
