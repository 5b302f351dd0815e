"""Run a tool that reads the state of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.launch.checks.model import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_S = 600.0  # above the limit of every check: the runner kills a check and its tools first
_QUOTED = 200  # characters of a tool's output that a reason quotes


def run_tool(environment: Mapping[str, str], argv: Sequence[str], *, install: str = "", allow_empty: bool = False) -> str:
    """Return the standard output of a tool.

    Output on stderr counts as a failure, because vendor tools report errors with exit code 0.

    Args:
        environment: The tool's environment. The system's folders are appended to its PATH.
        install: The package that contains the tool; default: the tool's name.

    Raises:
        UnavailableError: The tool is missing, cannot be run or fails, or it writes to stderr.
    """
    path = environment.get("PATH", "")
    full = {**environment, "LC_ALL": "C", "PATH": f"{path}:{_SYSTEM_PATH}" if path else _SYSTEM_PATH}
    name = argv[0]
    try:
        done = run_command(argv, timeout_s=_TIMEOUT_S, env=full)
    except FileNotFoundError as error:
        raise UnavailableError(f"{name} is not installed", fix=f"install {install or name}") from error
    except OSError as error:
        fix = f"allow this user to run {name}, or run as root"
        raise UnavailableError(f"{name} cannot be run: {error.strerror or error}", fix=fix) from error
    fix = f"run `{' '.join(argv)}` and read its output"
    if done.code:
        output = _last_line(done.stderr) or _last_line(done.stdout) or "no output"
        raise UnavailableError(f"{name} failed with exit code {done.code}: {output}", fix=fix)
    if done.stderr.strip():
        raise UnavailableError(f"{name} wrote an error with exit code 0: {_last_line(done.stderr)}", fix=fix)
    if not done.stdout.strip() and not allow_empty:
        raise UnavailableError(f"{name} printed nothing", fix=fix)
    return done.stdout


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:_QUOTED] if lines else ""
