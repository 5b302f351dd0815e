"""Prints results to stdout, so that they can be piped, and everything else to stderr; formats times, counts and errors."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from primus_bootstrap.core.errors import InventoryError, PrimusError

STYLES = {
    "READY": "green",
    "DEGRADED": "yellow",
    "QUARANTINED": "yellow",
    "UNREACHABLE": "red",
    "UNKNOWN": "magenta",
    "pass": "green",
    "ok": "green",
    "changed": "yellow",
    "would change": "yellow",
    "fail": "red",
    "failed": "red",
    "unreachable": "red",
    "unknown": "magenta",
    "interrupted": "magenta",
    "skipped": "dim",
    "not_reached": "dim",
}


def stderr() -> Console:
    """Return a new console on the current sys.stderr, which tests replace."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def program() -> str:
    """Return the name or path by which the user started this program, for commands to copy."""
    started_as = sys.argv[0]
    name = Path(started_as).name
    return started_as if name == "primus-bootstrap" and shutil.which(name) != started_as else "primus-bootstrap"


def short(path: Path) -> str:
    """Return a path quoted for the shell, relative if it is below the current folder."""
    absolute, here = path.absolute(), Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))


def count(number: int, noun: str) -> str:
    """Return `1 host` or `3 hosts`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Return `12s`, `3m05s` or `2h04m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def age_text(seconds: float) -> str:
    """Return how long something is ago: `12s ago`, `2h04m ago` or `3 days ago`."""
    days = int(seconds // 86400)
    return f"{count(days, 'day') if days > 1 else duration_text(max(seconds, 0.0))} ago"


def clock_text(seconds: float) -> str:
    """Return a time as local date and time, or a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def say(text: str) -> None:
    """Print a message to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def emit(text: str) -> None:
    """Print a result to stdout."""
    sys.stdout.write(f"{text}\n")


def emit_json(data: Any) -> None:
    """Print a result as JSON."""
    emit(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def plain_table(*columns: str) -> Table:
    """Return an empty table in the style of all verbs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def emit_table(table: Table) -> None:
    """Print a table; without a terminal it is as wide as its content, so that nothing is cut off, and lines have no trailing spaces."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    console = Console(highlight=False, width=max(80, console.measure(table, options=console.options.update(max_width=10_000)).maximum))
    with console.capture() as captured:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def coloured(word: str) -> Text:
    """Return a verdict or a result with its colour."""
    return Text(word, style=STYLES.get(word, ""))


def error_text(error: PrimusError) -> str:
    """Return the message and the fix of an error, as all verbs print it."""
    if isinstance(error, InventoryError):
        problems = "\n".join(str(problem) for problem in error.problems)
        return f"{problems}\n\n{error.what}; nothing was changed"
    return f"error: {error.what}\n  fix: {error.fix}"


def error_json(error: PrimusError) -> dict[str, Any]:
    """Return an error as plain data for JSON."""
    data: dict[str, Any] = {"error": error.what, "fix": error.fix, "exit_code": error.exit_code}
    if isinstance(error, InventoryError):
        data["problems"] = [asdict(problem) for problem in error.problems]
    return data
