# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Calls of sacctmgr: the only place that runs it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from ansible.module_utils.slurm_ledger import SHOWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Sacctmgr = Callable[[Sequence[str]], str]

CALL_S = 30.0


class RefusedError(Exception):
    """sacctmgr did not do what it was asked; the text is its own."""


def make_sacctmgr(configuration: str) -> Sacctmgr:
    """Return how to call sacctmgr with the configuration of this host's slurmdbd."""
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "SLURM_CONF": configuration, "LC_ALL": "C.UTF-8"}

    def call(words: Sequence[str]) -> str:
        try:
            done = subprocess.run(["sacctmgr", *words], env=environment, capture_output=True, text=True, check=False, timeout=CALL_S)
        except subprocess.TimeoutExpired as error:
            raise RefusedError(f"sacctmgr {' '.join(words)}: no answer within {CALL_S:g} s") from error
        except OSError as error:
            raise RefusedError(f"sacctmgr cannot be run: {error}") from error
        # It may end with 0 after an error, and says so on stderr only.
        if done.returncode or "error:" in done.stderr:
            raise RefusedError(f"sacctmgr {' '.join(words)}: {' '.join((done.stderr or done.stdout).split())}")
        return done.stdout

    return call


def read_all(sacctmgr: Sacctmgr, cluster: str) -> dict[str, str]:
    """Return what every `show` prints; accounts' places are those in one cluster."""
    answers = {}
    for what, columns in SHOWS.items():
        where = [f"cluster={cluster}"] if what == "association" else []
        answers[what] = sacctmgr(["--noheader", "--parsable2", "show", what, *where, f"format={','.join(columns)}"])
    return answers
