# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Run sacctmgr."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ansible.module_utils.commands import run_command
from ansible.module_utils.slurm_accounting_data import SHOWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Sacctmgr = Callable[[Sequence[str]], str]

CALL_S = 30.0


class RefusedError(Exception):
    """sacctmgr failed; the text is its message."""


def make_sacctmgr(configuration: str) -> Sacctmgr:
    """Return a function that runs sacctmgr with the configuration of the slurmdbd of this host."""
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "SLURM_CONF": configuration, "LC_ALL": "C.UTF-8"}

    def call(words: Sequence[str]) -> str:
        try:
            done = run_command(["sacctmgr", *words], env=environment, timeout_s=CALL_S)
        except TimeoutError as error:
            raise RefusedError(f"sacctmgr {' '.join(words)}: no answer within {CALL_S:g} s") from error
        except OSError as error:
            raise RefusedError(f"sacctmgr cannot be run: {error}") from error
        # It may exit with 0 after an error, which is only on stderr.
        if done.code or "error:" in done.stderr:
            raise RefusedError(f"sacctmgr {' '.join(words)}: {' '.join((done.stderr or done.stdout).split())}")
        return done.stdout

    return call


def read_all(sacctmgr: Sacctmgr, cluster: str) -> dict[str, str]:
    """Return the output of every `show` command; associations are those of one cluster."""
    answers = {}
    for what, columns in SHOWS.items():
        where = [f"cluster={cluster}"] if what == "association" else []
        answers[what] = sacctmgr(["--noheader", "--parsable2", "show", what, *where, f"format={','.join(columns)}"])
    return answers
