"""The runner and the gate of the role `node_health`."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.health_rig import FILES, HEALTH, load_program

gate: Any = load_program(FILES / "health_gate.py")
runner: Any = load_program(HEALTH / "run_checks.py")
PROGRAMS = sorted([*FILES.glob("*.py"), *HEALTH.glob("*.py")])


def document(**changes: Any) -> dict[str, Any]:
    """Return a current health.json of this boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    base = {
        "schema": "primus.health/1",
        "host": "n1",
        "boot_id": boot,
        "written": time.time(),
        "valid_for_s": 60,
        "verdict": "pass",
        "checks": [],
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("words", "overall"),
    [
        (["pass", "skipped"], "pass"),
        (["pass", "unknown", "skipped"], "unknown"),
        (["unknown", "fail", "pass"], "fail"),
        (["skipped"], "pass"),
    ],
)
def test_worst_verdict_counts(words: list[str], overall: str) -> None:
    """Fail before unknown before pass."""
    assert runner.make_document({}, [{"verdict": word} for word in words])["verdict"] == overall


def test_validity_ends_after_the_stated_seconds(tmp_path: Path) -> None:
    """The gate accepts the file until then."""
    path = tmp_path / "health.json"
    path.write_text(json.dumps(document(written=1000.0, valid_for_s=60)), encoding="utf-8")

    assert gate.read(path, now=1060.0).verdict == "pass"
    assert gate.read(path, now=1060.1).verdict == "unknown"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_support_python_3_9(path: Path) -> None:
    """Hosts use the python3 of their distribution; RHEL 9 has 3.9."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))

    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]


def test_every_program_is_shipped() -> None:
    """The role's list contains all files of the folder."""
    listed = (FILES.parent / "vars" / "main.yml").read_text(encoding="utf-8")

    assert [path.name for path in HEALTH.glob("*.py") if f"- {path.name}\n" not in listed] == []
