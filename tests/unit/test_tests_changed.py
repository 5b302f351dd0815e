"""Selection of the long tests for a change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.changed import ROOT, concerns


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ([], "left out"),
        (["roles/redis/tasks/main.yml"], "runs"),
        (["roles/redis_exporter/tasks/main.yml"], "left out"),
        (["docs/storage.md", "roles/redis"], "runs"),
        (["constraints.txt"], "runs"),
        (["primus_bootstrap/core/commands.py"], "runs"),
        (["tests/unit/test_x.py"], "left out"),
    ],
)
def test_change_below_a_path_selects_the_test(changed: list[str], wanted: str) -> None:
    """Whole folder names are compared; shared test files select every test."""
    assert concerns(changed, ["roles/redis/", "playbooks/day2/backup.yml"]) is (wanted == "runs")


def test_paths_of_long_tests_exist() -> None:
    """A renamed path would disable the selection."""
    named = {
        path
        for file in (ROOT / "tests").rglob("*.py")
        for words in re.findall(r"mark\.long\(([^)]*)\)", file.read_text(encoding="utf-8"))
        for path in re.findall(r'"([^"]+)"', words)
    } - {"roles/redis/"}

    assert named
    assert [path for path in sorted(named) if not Path(ROOT / path).exists()] == []
