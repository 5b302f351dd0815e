"""Asking a tool: what is missing, fails, says nothing, or says an error with exit code 0 is no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.launch.checks.model import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_S = 600.0  # more than any check has: the runner kills the check, with all it started, before this
_SAID = 200  # characters of a tool's own words that a record quotes


def ask(environment: Mapping[str, str], argv: Sequence[str], *, install: str = "", may_be_silent: bool = False) -> str:
    """Return what a program that only reads printed. Its time limit is that of the check: the runner kills both.

    Args:
        environment: Its PATH comes first, then the system's folders.
        argv: The program and its arguments.
        install: The package that brings it.
        may_be_silent: An empty answer is one.

    Raises:
        CannotTellError: There is no such program, it may not be run, it failed, or it said something on stderr.
    """
    own = environment.get("PATH", "")
    full = {**environment, "LC_ALL": "C", "PATH": f"{own}:{_SYSTEM}" if own else _SYSTEM}
    name = argv[0]
    try:
        done = run_command(argv, timeout_s=_LONGEST_S, env=full)
    except FileNotFoundError as error:
        raise CannotTellError(f"{name} is not installed", fix=f"install {install or name}") from error
    except OSError as error:
        raise CannotTellError(f"{name} cannot be run: {error.strerror or error}", fix=f"see that {name} can be run by this user") from error
    fix = f"run `{' '.join(argv)}` by hand"
    if done.code:
        raise CannotTellError(f"{name} ended with {done.code}: {_last(done.stderr) or _last(done.stdout) or 'it said nothing'}", fix=fix)
    if done.stderr.strip():
        raise CannotTellError(f"{name} ended with 0 and said on stderr: {_last(done.stderr)}", fix=fix)
    if not done.stdout.strip() and not may_be_silent:
        raise CannotTellError(f"{name} ended with 0 and said nothing", fix=fix)
    return done.stdout


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:_SAID] if lines else ""
