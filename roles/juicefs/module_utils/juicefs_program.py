# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Run the program `juicefs` on a host, and read what it prints. Secrets are passed in its environment."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# JuiceFS itself retries for minutes if an engine does not answer (0.14: four minutes).
_STATUS_S = 40.0
# Time for the end of a program after its time limit.
_END_S = 10.0
# Messages of 0.14 and 1.x for an engine without a volume.
_EMPTY = ("no volume found", "database is not formatted")
_REFUSED = ("NOAUTH", "WRONGPASS", "password authentication failed", "Access denied")


class VolumeError(Exception):
    """The volume cannot be used; the message has the fix."""


def read_environment(path: str) -> dict[str, str]:
    """Return the variables of an environment file of systemd's simplest form."""
    text = Path(path).read_text(encoding="utf-8")
    lines = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


def status_in(output: str) -> dict[str, Any] | None:
    """Return what `juicefs status` prints as JSON among its log lines, or None if there is none."""
    start = re.search(r"(?m)^\{", output)
    if not start:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(output[start.start() :])
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("Setting"), dict) else None


def last_error(output: str) -> str:
    """Return the last error or warning in the program's log, without time and source line."""
    lines = re.findall(r"<(?:FATAL|ERROR|WARNING)>: (.*?)(?: \[[^\]]*\])?$", output, re.MULTILINE)
    return lines[-1] if lines else (output.strip().splitlines() or ["it printed nothing"])[-1]


def run(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    """Run the program and return its exit code and output; timeout(1) keeps the output of a program that it ends, with status 124."""
    variables = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **environment}
    try:
        done = run_command(["timeout", f"{limit_s:g}", *command], env=variables, timeout_s=limit_s + _END_S)
    except TimeoutError:
        return 124, ""
    return done.code, done.stdout + done.stderr


def read_status(program: str, meta_url: str, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the settings and sessions of the volume, or None if the engine answers and has no volume.

    Raises:
        VolumeError: The engine does not answer, or refuses the password.
    """
    code, output = run([program, "status", meta_url], environment, _STATUS_S)
    status = status_in(output) if code == 0 else None
    if status is not None:
        return status
    if any(words in output for words in _EMPTY):
        return None
    if any(words in output for words in _REFUSED):
        raise VolumeError(f"{meta_url} refuses the password. Fix: set juicefs_meta_password (or redis_password) to the engine's password")
    late = f"no answer within {_STATUS_S:.0f} s; " if code == 124 else ""
    raise VolumeError(
        f"{meta_url} cannot be used: {late}{last_error(output)}. Fix: check that the engine runs and that its port is open from this host"
    )
