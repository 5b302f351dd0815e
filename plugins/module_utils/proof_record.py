# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Keep the verdicts of an expensive proof, such as a test job or a pushed image, so that not every verification repeats it.

A proof is repeated if it is requested, if it is too old, or if its fingerprint changed: the content of the service's files, the systemd
invocation of its units, which is new after every start, and what else the module states. Only a proof whose checks all passed is kept.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FOLDER = Path("/var/lib/primus/proofs")
MAX_BYTES = 1 << 20
COMMAND_S = 10
_HOUR_S = 3600.0
_GOOD = ("pass", "skipped")


def unit_invocation(unit: str) -> str:
    """Return the id of a unit's last start; empty if systemd does not know it."""
    argv = ["systemctl", "show", "--property=InvocationID", "--value", unit]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def fingerprint(
    files: Iterable[str | Path], units: Iterable[str], facts: Iterable[str] = (), *, invocation: Callable[[str], str] = unit_invocation
) -> str:
    """Return a checksum of what a proof depends on. A missing file counts as empty."""
    total = hashlib.sha256()
    for path in sorted(str(path) for path in files):
        try:
            content = Path(path).read_bytes()
        except OSError:
            content = b""
        total.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    for unit in sorted(units):
        total.update(f"{unit} {invocation(unit)}\n".encode())
    for fact in facts:
        total.update(f"{fact}\n".encode())
    return total.hexdigest()


class ProofRecord:
    """The last good proof of one kind on this host."""

    def __init__(self, name: str, current: str, max_age_h: int, *, folder: Path = FOLDER, clock: Callable[[], float] = time.time) -> None:
        """Store the name, the current fingerprint and the maximum age. With an age of 0, every verification proves anew."""
        self.path = folder / f"{name}.json"
        self.current, self.max_age_h, self.clock = current, max_age_h, clock

    def load(self) -> list[dict[str, Any]]:
        """Return the verdicts of the last proof with its age; empty if the proof must be repeated."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return []
            stored = json.loads(self.path.read_text(encoding="utf-8", errors="replace"))
            age_s = self.clock() - float(stored["at"])
            verdicts = [dict(record) for record in stored["verdicts"]]
            proved = stored["fingerprint"] == self.current and 0 <= age_s <= self.max_age_h * _HOUR_S
            return [_aged(record, age_s) for record in verdicts] if proved and self.max_age_h > 0 else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def store(self, verdicts: list[dict[str, Any]]) -> None:
        """Keep the verdicts if no check failed or is unknown and one passed; otherwise remove the record."""
        words = [record["verdict"] for record in verdicts]
        if "pass" not in words or not set(words) <= set(_GOOD):
            self.path.unlink(missing_ok=True)
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self.path, json.dumps({"fingerprint": self.current, "at": self.clock(), "verdicts": verdicts}), mode=0o600)


def _aged(record: dict[str, Any], age_s: float) -> dict[str, Any]:
    """Return a stored verdict whose text says when it was proved."""
    minutes = int(age_s // 60)
    age = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
    text = "found" if record["verdict"] == "pass" else "reason"
    return {**record, text: f"{record.get(text, '')} (proved {age} ago)", "seconds": 0.0}
