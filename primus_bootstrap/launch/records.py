"""Verdict records as plain data: the shape of primus_bootstrap/verdicts.py, which a program that runs on hosts cannot import.

A contract test reads what this module writes with the controller's `parse_verdict`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "primus.verdict/1"
PASS, FAIL, UNKNOWN, SKIPPED = "pass", "fail", "unknown", "skipped"


@dataclass(frozen=True)
class Record:
    """What one check found on one host; the fields are those of the verdict record."""

    check: str
    host: str
    verdict: str
    expected: str = ""
    found: str = ""
    unit: str = ""
    source: str = ""
    reason: str = ""
    fix: str = ""
    device: str = ""
    serial: str = ""
    started: float = 0.0
    seconds: float = 0.0
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data for `json.dumps`."""
        return asdict(self)
