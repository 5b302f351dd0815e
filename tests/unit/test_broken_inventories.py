"""Each folder in tests/data/broken is a broken inventory with its expected problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.core.errors import InventoryError
from primus_bootstrap.inventory import find_problems, load_cluster
from tests.unit.inventory_rig import DATA, demo_content

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = sorted(path for path in (DATA / "broken").iterdir() if path.is_dir())
SECRET = "hunter2"


@pytest.fixture(scope="module", autouse=True)
def _demo_role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch, demo_content(tmp_path_factory.mktemp("content"), monkeypatch):
        yield


def _expected(case: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((case / "expected.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_broken_inventory_is_reported(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All problems, and no others, have the expected file, line, rule, message and fix. No message shows a secret."""
    monkeypatch.chdir(case.parent)
    expected = _expected(case)
    path = Path(case.name) / expected["path"] if "path" in expected else Path(case.name)
    positions = [(str(Path(case.name) / one["file"]), one["line"], one["rule"]) for one in expected["problems"]]

    problems = find_problems(path)

    assert [(one.file, one.line, one.rule) for one in problems] == positions, [str(one) for one in problems]
    for problem, one in zip(problems, expected["problems"], strict=True):
        assert one["what"] in problem.what
        assert one["fix"] in problem.fix
        assert SECRET not in str(problem)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_broken_inventory_does_not_load(case: Path) -> None:
    """`load_cluster` raises the same number of problems."""
    expected = _expected(case)

    with pytest.raises(InventoryError) as caught:
        load_cluster(case / expected.get("path", ""))

    assert len(caught.value.problems) == len(expected["problems"])


def test_there_are_enough_cases() -> None:
    """There are at least forty broken inventories."""
    assert len(CASES) >= 40
