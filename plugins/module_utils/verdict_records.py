# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Collect the verdict records of a verification, and end a module with them. primus_bootstrap/core/verdicts.py describes a record."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

SCHEMA = "primus.verdict/1"


class Verdicts:
    """The records of one role on one host, or on several hosts as one of them sees them."""

    def __init__(self, role: str, host: str) -> None:
        """Start without records; the names of the checks begin with the role."""
        self.role, self.host = role, host
        self.records: list[dict[str, Any]] = []
        self._started = time.time()

    def add(  # noqa: PLR0913 (the record's fields)
        self,
        check: str,
        verdict: str,
        *,
        expected: str = "",
        found: str = "",
        unit: str = "",
        reason: str = "",
        fix: str = "",
        device: str = "",
        host: str = "",
    ) -> None:
        """Add one record; its duration is the time since the previous one.

        A pass has no reason and no fix. The default reason of the other verdicts is what was expected and found.
        """
        now = time.time()
        record = {"check": f"{self.role}.{check}", "host": host or self.host, "verdict": verdict, "expected": expected, "found": found}
        named = {name: value for name, value in (("device", device), ("unit", unit)) if value}
        problem = {} if verdict == "pass" else {"reason": reason or f"expected {expected}, found {found or 'nothing'}", "fix": fix}
        origin = {
            "source": f"roles/{self.role}/meta/argument_specs.yml",
            "started": self._started,
            "seconds": round(now - self._started, 3),
        }
        self.records.append({**record, **named, **problem, **origin, "schema": SCHEMA})
        self._started = now

    def skip(self, check: str, reason: str, *, expected: str = "", fix: str = "", host: str = "") -> None:
        """Add a record of a check that does not apply."""
        self.add(check, "skipped", expected=expected, reason=reason, fix=fix, host=host)

    def failures(self) -> list[str]:
        """Return one line per failed check, with its fix."""
        return [self._line(record) for record in self.records if record["verdict"] == "fail"]

    def _line(self, record: dict[str, Any]) -> str:
        host = "" if record["host"] == self.host else record["host"]
        subject = " ".join(filter(None, (host, record["check"], record.get("device", ""))))
        return f"{subject}: {record['reason']}. Fix: {record['fix']}"

    def finish(self, module: AnsibleModule, **result: Any) -> None:
        """End the module with the records; it fails if one of them is a fail."""
        result = {"changed": False, **result, "verdicts": self.records, "stdout": json.dumps({"verdicts": self.records})}
        failed = self.failures()
        if failed:
            module.fail_json(msg="; ".join(failed), **result)
        module.exit_json(**result)
