# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""The host as `host_tuning` and `host_effects` access it: reads and writes files, runs programs, collects changes and verdicts.

In check mode nothing is written.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.container_kind import container_kind
from ansible.module_utils.host_files import replace_file
from ansible.module_utils.host_programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], "tuple[int, str]"]

SOURCE = "roles/baseline/meta/argument_specs.yml"
MARKS = "/var/lib/primus/baseline"
REFUSALS = (errno.EROFS, errno.EACCES, errno.EPERM)


class Host:
    """The host; `root` is `/` except in tests."""

    def __init__(self, name: str, *, check: bool, root: str = "/", run: Runner = run_program) -> None:
        """Detect whether this host is a container."""
        self.name = name
        self.check = check
        self.root = Path(root)
        self.run = run
        self.diffs: list[dict[str, str]] = []
        self.verdicts: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.container = container_kind(self.root)

    def machine_reason(self, what: str) -> str:
        """Return why a container cannot change something of its machine; empty if this host is no container."""
        return f"{what} belongs to the machine that runs this {self.container} container" if self.container else ""

    def at(self, path: str) -> Path:
        """Return an absolute path of the host below `root`."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Return a file's text, or None if it does not exist."""
        try:
            return self.at(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def changed(self, what: str, before: str, after: str) -> None:
        """Record a change; in check mode, one that would be made."""
        ends = [text if not text or text.endswith("\n") else f"{text}\n" for text in (before, after)]
        self.diffs.append({"before_header": what, "after_header": what, "before": ends[0], "after": ends[1]})

    def record(self, check: str, verdict: str, **evidence: str) -> None:
        """Record one verdict; `evidence` has expected and found, and reason and fix if any."""
        record = {"check": f"baseline.{check}", "host": self.name, "verdict": verdict, **evidence}
        self.verdicts.append({**record, "source": SOURCE, "schema": "primus.verdict/1", "started": time.time()})

    def record_applied(self, check: str, *, expected: str, found: str) -> None:
        """Record the verdict of a value that was just changed; in check mode it is still the old one."""
        if self.check:
            self.record(check, "fail", expected=expected, found=found, reason="not in effect yet", fix="apply the phase baseline")
        else:
            self.record(check, "pass", expected=expected, found=expected)

    def fail(self, check: str, *, expected: str, found: str, reason: str, fix: str) -> None:
        """Record a setting that could not be applied; the task fails at its end."""
        self.record(check, "fail", expected=expected, found=found, reason=reason, fix=fix)
        self.failures.append(f"{check}: {reason}. Fix: {fix}")

    def write(self, path: str, content: str, *, mode: int = 0o644, notify: str = "") -> bool:
        """Write a file with exactly this text; an empty text removes the file.

        Args:
            path: Absolute path.
            content: The whole text.
            mode: Permission bits.
            notify: Name of the marker for `run_pending`. It is written before the file changes, so that an interrupted run leaves it.

        Returns:
            Whether the file differed.
        """
        target, before = self.at(path), self.read(path)
        same_mode = before is None or not content or target.stat().st_mode & 0o7777 == mode
        if (before or "") == content and same_mode:
            return False
        self.changed(path, before or "", content)
        if self.check:
            return True
        if notify:
            mark = self.at(f"{MARKS}/{notify}.pending")
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        if content:
            replace_file(target, content, mode=mode)
        else:
            target.unlink()
        return True

    def pending(self, name: str) -> bool:
        """Return whether a command still has to run because its files changed."""
        return self.at(f"{MARKS}/{name}.pending").exists()

    def clear_pending(self, name: str) -> None:
        """Remove the marker."""
        self.at(f"{MARKS}/{name}.pending").unlink(missing_ok=True)

    def run_pending(self, name: str, argv: Sequence[str]) -> None:
        """Run a command if its files changed in this run, or in one that was interrupted."""
        if self.check or not self.pending(name):
            return
        status, output = self.run(argv)
        if status:
            reason = f"`{' '.join(argv)}` exited with {status}: {output}"
            self.fail(name, expected="exit 0", found=f"exit {status}", reason=reason, fix="correct the reported error, then apply again")
            return
        self.changed(name, "files changed since its last start", " ".join(argv))
        self.clear_pending(name)

    def set_kernel_file(self, path: str, value: str) -> str:
        """Write a kernel value; return why this host does not allow it, or an empty string.

        Raises:
            OSError: The kernel refuses the value itself.
        """
        if self.check:
            return "" if os.access(self.at(path), os.W_OK) else f"{path} is read-only here"
        try:
            self.at(path).write_text(value, encoding="utf-8")
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            return f"{path}: {os.strerror(error.errno).lower()}"
        return ""
