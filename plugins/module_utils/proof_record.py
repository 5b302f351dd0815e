# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Keep the verdict of an expensive proof, such as a test job, so that not every verification repeats it.

A proof is repeated if it is requested, if it is too old, or if its fingerprint changed: the content of the service's files, the systemd
invocation of its units, which is new after every start, and what else the module states. Only a pass is kept.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.unit_properties import unit_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FOLDER = Path("/var/lib/primus/proofs")
MAX_BYTES = 1 << 20
_HOUR_S = 3600.0


def unit_invocation(unit: str) -> str:
    """Return the id of a unit's last start; empty if systemd does not know it."""
    return unit_properties(unit, "InvocationID").get("InvocationID", "")


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

    def load(self) -> dict[str, Any] | None:
        """Return the verdict of the last proof with its age; None if the proof must be repeated."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return None
            stored = json.loads(self.path.read_text(encoding="utf-8", errors="replace"))
            age_s = self.clock() - float(stored["at"])
            holds = stored["fingerprint"] == self.current and 0 <= age_s <= self.max_age_h * _HOUR_S and self.max_age_h > 0
            return _aged(dict(stored["verdict"]), age_s) if holds else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, verdict: dict[str, Any]) -> None:
        """Keep a pass; another verdict removes the record."""
        if verdict["verdict"] != "pass":
            self.path.unlink(missing_ok=True)
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self.path, json.dumps({"fingerprint": self.current, "at": self.clock(), "verdict": verdict}), mode=0o600)


def _aged(verdict: dict[str, Any], age_s: float) -> dict[str, Any]:
    """Return a stored verdict whose `found` says when it was proved."""
    minutes = int(age_s // 60)
    age = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
    return {**verdict, "found": f"{verdict['found']} (proved {age} ago)", "seconds": 0.0}
