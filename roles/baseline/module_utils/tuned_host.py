# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""A host as the module `host_tuning` reads and changes it: the only place that touches files and programs of the host.

It records what changed and what each check found, and knows check mode, in which nothing is written.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], "tuple[int, str]"]

SOURCE = "roles/baseline/meta/argument_specs.yml"
MARKS = "/var/lib/primus/baseline"
REFUSALS = (errno.EROFS, errno.EACCES, errno.EPERM)


def run_program(argv: Sequence[str]) -> tuple[int, str]:
    """Run a program of the host; return its exit status and its output, both streams together."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300)
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    return done.returncode, done.stdout.strip()


class Host:
    """The host; `root` is `/` except in tests."""

    def __init__(self, name: str, *, check: bool, root: str = "/", run: Runner = run_program) -> None:
        """Find out whether this is a container, and whose."""
        self.name = name
        self.check = check
        self.root = Path(root)
        self.run = run
        self.diffs: list[dict[str, str]] = []
        self.verdicts: list[dict[str, Any]] = []
        self.broken: list[str] = []
        self.container = self._container()

    def _container(self) -> str:
        named = self.read("/run/systemd/container")
        if named:
            return named.strip()
        marks = {"/run/.containerenv": "podman", "/.dockerenv": "docker"}
        return next((kind for path, kind in marks.items() if self.at(path).exists()), "")

    def below(self, what: str) -> str:
        """Say that something belongs to the machine below this container; empty where this is none."""
        return f"{what} belongs to the machine below this {self.container} container" if self.container else ""

    def at(self, path: str) -> Path:
        """Return where an absolute path of the host lies."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Return a file's text, or None where there is no such file."""
        try:
            return self.at(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def changed(self, what: str, before: str, after: str) -> None:
        """Record a change, made or (in check mode) due."""
        ends = [text if not text or text.endswith("\n") else f"{text}\n" for text in (before, after)]
        self.diffs.append({"before_header": what, "after_header": what, "before": ends[0], "after": ends[1]})

    def judge(self, check: str, verdict: str, **evidence: str) -> None:
        """Record one verdict; `evidence` is its expected and found, and reason and fix where there are any."""
        record = {"check": f"baseline.{check}", "host": self.name, "verdict": verdict, **evidence}
        self.verdicts.append({**record, "source": SOURCE, "schema": "primus.verdict/1", "started": time.time()})

    def settled(self, check: str, *, expected: str, found: str) -> None:
        """Record a value that was just changed: in force now, or (in check mode) still the old one."""
        if self.check:
            self.judge(check, "fail", expected=expected, found=found, reason="not in force yet", fix="apply the phase baseline")
        else:
            self.judge(check, "pass", expected=expected, found=expected)

    def broke(self, check: str, *, expected: str, found: str, reason: str, fix: str) -> None:
        """Record what could not be brought to its value although this host should allow it: the task fails at its end."""
        self.judge(check, "fail", expected=expected, found=found, reason=reason, fix=fix)
        self.broken.append(f"{check}: {reason}. Fix: {fix}")

    def write(self, path: str, content: str, *, mode: int = 0o644, tell: str = "") -> bool:
        """Make a file hold exactly this text; an empty text means that there is no such file.

        Args:
            path: Absolute.
            content: The whole text.
            mode: Permission bits.
            tell: Who has to be told (`told` does it). The mark is set before the file changes, so that a run that is
                killed in between leaves it.

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
        if tell:
            mark = self.at(f"{MARKS}/{tell}.pending")
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        if content:
            _replace(target, content, mode)
        else:
            target.unlink()
        return True

    def pending(self, name: str) -> bool:
        """Say whether a program has yet to be told about its changed files."""
        return self.at(f"{MARKS}/{name}.pending").exists()

    def told(self, name: str) -> None:
        """Take the mark away."""
        self.at(f"{MARKS}/{name}.pending").unlink(missing_ok=True)

    def tell(self, name: str, argv: Sequence[str]) -> None:
        """Tell a program about its changed files, those of this run or of one that was killed."""
        if self.check or not self.pending(name):
            return
        status, output = self.run(argv)
        if status:
            reason = f"`{' '.join(argv)}` ended with {status}: {output}"
            self.broke(name, expected="exit 0", found=f"exit {status}", reason=reason, fix="mend what it says, then run again")
            return
        self.changed(name, "not told about its changed files", " ".join(argv))
        self.told(name)

    def set_kernel_file(self, path: str, value: str) -> str:
        """Write a kernel value; return why this host does not allow it, or an empty string. A refused value is raised."""
        if self.check:
            return "" if os.access(self.at(path), os.W_OK) else f"{path} is read-only here"
        try:
            self.at(path).write_text(value, encoding="utf-8")
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            return f"{path}: {os.strerror(error.errno).lower()}"
        return ""


def _replace(target: Path, content: str, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".primus-")
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
        fresh.chmod(mode)
        fresh.replace(target)
    except OSError as error:
        fresh.unlink()
        # A container's /etc/hosts is a mount and cannot be replaced, only rewritten.
        if error.errno != errno.EBUSY:
            raise OSError(error.errno, error.strerror, str(target)) from error
        target.write_text(content, encoding="utf-8")
