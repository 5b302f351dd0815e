"""Where text goes: results to stdout so that they can be piped, everything else to stderr."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from primus_bootstrap.core.errors import InventoryError, PrimusError

STYLES = {
    "pass": "green",
    "ok": "green",
    "changed": "yellow",
    "fail": "red",
    "failed": "red",
    "unreachable": "red",
    "unknown": "magenta",
    "interrupted": "magenta",
    "skipped": "dim",
    "not_reached": "dim",
}


def stderr() -> Console:
    """Return a console on today's stderr (tests replace the stream, so none is kept)."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def program() -> str:
    """Return how the user calls this program, for commands that are shown to be typed."""
    called = sys.argv[0]
    name = Path(called).name
    return called if name == "primus-bootstrap" and shutil.which(name) != called else "primus-bootstrap"


def short(path: Path) -> str:
    """Return a path as the user would type it here: relative where it lies below the current folder, quoted for a shell."""
    absolute, here = path.absolute(), Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))


def say(text: str) -> None:
    """Tell the user something about the work; it never ends up in a pipe."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def emit(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{text}\n")


def emit_json(data: Any) -> None:
    """Print a result for machines."""
    emit(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def plain_table(*columns: str) -> Table:
    """Return a table in the one style that all verbs use."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def emit_table(table: Table) -> None:
    """Print a table as a result; without a terminal it is as wide as its content, so that nothing is cut."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(80, console.measure(table, options=console.options.update(max_width=10_000)).maximum))
    console.print(table)


def coloured(word: str) -> Text:
    """Return a verdict or a result in its colour."""
    return Text(word, style=STYLES.get(word, ""))


def error_text(error: PrimusError) -> str:
    """Render an error the way every verb shows it: what, then how to mend it."""
    if isinstance(error, InventoryError):
        problems = "\n".join(str(problem) for problem in error.problems)
        return f"{problems}\n\n{error.what}; nothing was touched"
    return f"error: {error.what}\n  fix: {error.fix}"


def error_json(error: PrimusError) -> dict[str, Any]:
    """Render an error for machines."""
    data: dict[str, Any] = {"error": error.what, "fix": error.fix, "exit_code": error.exit_code}
    if isinstance(error, InventoryError):
        data["problems"] = [
            {"file": problem.file, "line": problem.line, "what": problem.what, "fix": problem.fix, "rule": problem.rule}
            for problem in error.problems
        ]
    return data
