"""Module `node_health_effects`: the timer is active, and a run of the health checks writes a new result."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence

effects: Any = load_role_module("node_health", "node_health_effects")

DISK = {"check": "disk", "host": "n1", "verdict": "fail", "reason": "0.1 GiB are free", "fix": "delete files", "device": "/"}


class Host:
    """A host whose programs answer. The gate answers with a text, or with a result that was written now, or `age_s` ago."""

    def __init__(self, answer: str | dict[str, Any], timer: str = "active", started: str = "") -> None:
        """Store the answers."""
        self.answer, self.timer, self.started = answer, timer, started

    def __call__(self, argv: Sequence[str]) -> tuple[int, str]:
        """Answer one call."""
        gate = self.answer if isinstance(self.answer, str) else json.dumps({**self.answer, "written": time.time() - self.answer["age_s"]})
        return 0, {"is-active": self.timer, "start": self.started}.get(argv[1], gate)


def health(verdict: str, *checks: dict[str, str], age_s: float = 0.0) -> dict[str, Any]:
    """Return a result of the checks."""
    return {"verdict": verdict, "reason": "", "age_s": age_s, "checks": checks}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (Host(health("pass")), {"node_health.timer": "pass", "node_health.result": "pass"}),
        (Host(health("pass"), timer="inactive"), {"node_health.timer": "fail", "node_health.result": "pass"}),
        (Host(health("fail", DISK)), {"node_health.timer": "pass", "node_health.result": "pass", "disk": "fail"}),
        (Host(health("fail", DISK, age_s=60)), {"node_health.timer": "pass", "node_health.result": "unknown"}),
        (Host("Traceback"), {"node_health.timer": "pass", "node_health.result": "unknown"}),
    ],
)
def test_result_of_the_checks_becomes_verdicts(host: Host, expected: dict[str, str]) -> None:
    """An old result, or none, is unknown, and its checks do not count."""
    assert {record["check"]: record["verdict"] for record in effects.verify("n1", host).records} == expected


def test_error_of_the_unit_is_the_reason() -> None:
    """It says why there is no new result."""
    found = effects.verify("n1", Host("", started="Job for primus-health.service failed.")).records[1]

    assert found["reason"] == "no new health.json was written: Job for primus-health.service failed."


def test_failed_check_is_reported_with_its_fix() -> None:
    """The message of the failed task is all that the user sees at first."""
    assert effects.verify("n1", Host(health("fail", DISK))).failures() == ["disk /: 0.1 GiB are free. Fix: delete files"]
