"""Asking a tool: what is missing, fails, says nothing, or says an error with exit code 0 is no answer."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
_SAID = 200  # characters of a tool's own words that a record quotes


def ask(environment: Mapping[str, str], argv: Sequence[str], *, install: str = "", may_be_silent: bool = False) -> str:
    """Return what a program that only reads printed. It has no time limit of its own: the runner kills the check with all it started.

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
        done = subprocess.run(argv, env=full, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise CannotTellError(f"{name} is not installed", fix=f"install {install or name}") from error
    except OSError as error:
        raise CannotTellError(f"{name} cannot be run: {error.strerror}", fix=f"see that {name} can be run by this user") from error
    output, said = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    fix = f"run `{' '.join(argv)}` by hand"
    if done.returncode:
        raise CannotTellError(f"{name} ended with {done.returncode}: {_last(said) or _last(output) or 'it said nothing'}", fix=fix)
    if said.strip():
        raise CannotTellError(f"{name} ended with 0 and said on stderr: {_last(said)}", fix=fix)
    if not output.strip() and not may_be_silent:
        raise CannotTellError(f"{name} ended with 0 and said nothing", fix=fix)
    return output


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:_SAID] if lines else ""
