# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""The host as `host_origin` and `put_back` access it: files, programs, and the list of changes, kept things and failures.

In check mode nothing changes.
"""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.host_programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], "tuple[int, str]"]

SOURCE = "roles/host_origin"
# Markers of pending restarts and reloads; on a tmpfs, because a boot makes them unnecessary.
MARKS = "/run/primus-reset"
# Package managers remove many packages in one call.
run_slow_program: Runner = partial(run_program, timeout_s=900.0)


class Host:
    """The host; `root` is `/` except in tests."""

    def __init__(self, name: str, *, check: bool = False, root: str = "/", run: Runner = run_slow_program) -> None:
        """Start with nothing changed and nothing kept."""
        self.name = name
        self.check = check
        self.root = Path(root)
        self.run = run
        self.diffs: list[dict[str, str]] = []
        self.verdicts: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def at(self, path: str) -> Path:
        """Return an absolute path of the host below `root`."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return a file's text, or an empty string if it does not exist."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def exists(self, path: str) -> bool:
        """Return whether a path exists; a dangling link exists too."""
        return os.path.lexists(self.at(path))

    def changed(self, what: str, before: str, after: str) -> None:
        """Record a change; in check mode, one that would be made."""
        self.diffs.append({"before_header": what, "after_header": what, "before": f"{before}\n", "after": f"{after}\n"})

    def kept(self, what: str, reason: str, fix: str = "") -> None:
        """Record something of a role that stays on the host."""
        record = {
            "check": "reset.kept",
            "device": what,
            "host": self.name,
            "verdict": "skipped",
            "expected": "original state",
            "found": what,
        }
        self.verdicts.append(
            {**record, "reason": f"{what}: {reason}", "fix": fix, "source": SOURCE, "started": time.time(), "schema": "primus.verdict/1"}
        )

    def fail(self, what: str, reason: str, fix: str) -> None:
        """Record something that could not be restored; the task fails at its end."""
        self.failures.append(f"{what}: {reason}. Fix: {fix}")

    def run_change(self, what: str, before: str, after: str, argv: Sequence[str], *, fix: str) -> bool:
        """Run a program that changes something, and record the change; return whether it succeeded."""
        status, output = (0, "") if self.check else self.run(argv)
        if status:
            self.fail(what, f"`{' '.join(argv)}` exited with {status}: {' '.join(output.split()[-40:])}", fix)
            return False
        self.changed(what, before, after)
        return True

    def remove(self, path: str) -> None:
        """Remove a file, a link or a folder if it exists, and record the change."""
        if not self.exists(path):
            return
        self.changed(path, "present", "removed")
        if self.check:
            return
        target = self.at(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def mark_pending(self, name: str) -> None:
        """Write the marker of a command that must run after a change; an interrupted run leaves it."""
        if self.check:
            return
        path = self.at(f"{MARKS}/{name}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()

    def run_pending(self, name: str, argv: Sequence[str], *, fix: str) -> None:
        """Run a command if its marker exists, from this run or an interrupted one."""
        path = self.at(f"{MARKS}/{name}")
        if not self.check and path.exists() and self.run_change(" ".join(argv), "pending", "done", argv, fix=fix):
            path.unlink()

    def result(self) -> dict[str, Any]:
        """Return what a module reports."""
        return {"changed": bool(self.diffs), "diff": self.diffs, "verdicts": self.verdicts}
