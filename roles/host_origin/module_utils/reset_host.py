# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""A host as the modules `host_origin` and `put_back` look at it and change it: the only place that runs programs.

It records what changed, what was kept and why, and what could not be done; in check mode nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], "tuple[int, str]"]

SOURCE = "roles/host_origin"
# What has yet to be told to a service: on a tmpfs, because a boot tells it to everybody.
MARKS = "/run/primus-reset"
PROGRAM_S = 900


def run_program(argv: Sequence[str]) -> tuple[int, str]:
    """Run a program of the host; return its exit status and its output, both streams together."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PROGRAM_S, env=environment
        )
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} did not end within {PROGRAM_S} s"
    return done.returncode, done.stdout.strip()


class Host:
    """The host; `root` is `/` except in tests."""

    def __init__(self, name: str, *, check: bool = False, root: str = "/", run: Runner = run_program) -> None:
        """Start with nothing changed and nothing kept."""
        self.name = name
        self.check = check
        self.root = Path(root)
        self.run = run
        self.diffs: list[dict[str, str]] = []
        self.verdicts: list[dict[str, Any]] = []
        self.broken: list[str] = []

    def at(self, path: str) -> Path:
        """Return where an absolute path of the host lies."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return a file's text, or an empty string where there is none."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def there(self, path: str) -> bool:
        """Say whether a path exists, a dangling link included."""
        return os.path.lexists(self.at(path))

    def changed(self, what: str, before: str, after: str) -> None:
        """Record a change, made or (in check mode) due."""
        self.diffs.append({"before_header": what, "after_header": what, "before": f"{before}\n", "after": f"{after}\n"})

    def kept(self, what: str, reason: str, fix: str = "") -> None:
        """Record what stays on the host although a role brought or changed it."""
        record = {"check": "reset.kept", "device": what, "host": self.name, "verdict": "skipped", "expected": "as before", "found": what}
        self.verdicts.append(
            {**record, "reason": f"{what}: {reason}", "fix": fix, "source": SOURCE, "started": time.time(), "schema": "primus.verdict/1"}
        )

    def broke(self, what: str, reason: str, fix: str) -> None:
        """Record what could not be put back: the task fails at its end."""
        self.broken.append(f"{what}: {reason}. Fix: {fix}")

    def do(self, what: str, before: str, after: str, argv: Sequence[str], *, fix: str) -> bool:
        """Run a program that changes something, and record it; return whether it went well."""
        status, output = (0, "") if self.check else self.run(argv)
        if status:
            self.broke(what, f"`{' '.join(argv)}` ended with {status}: {' '.join(output.split()[-40:])}", fix)
            return False
        self.changed(what, before, after)
        return True

    def remove(self, path: str) -> None:
        """Remove a file, a link or a whole folder, and record it; what is not there needs nothing."""
        if not self.there(path):
            return
        self.changed(path, "is there", "removed")
        if self.check:
            return
        target = self.at(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def mark(self, name: str) -> None:
        """Note that a service must be told of a change; a run that is killed before it does so leaves the mark."""
        if self.check:
            return
        path = self.at(f"{MARKS}/{name}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()

    def tell(self, name: str, argv: Sequence[str], *, fix: str) -> None:
        """Tell a service about its changes, those of this run or of one that was killed."""
        path = self.at(f"{MARKS}/{name}")
        if not self.check and path.exists() and self.do(" ".join(argv), "not told", "told", argv, fix=fix):
            path.unlink()

    def result(self) -> dict[str, Any]:
        """Return what a module reports."""
        return {"changed": bool(self.diffs), "diff": self.diffs, "verdicts": self.verdicts}
