"""Test files have unique names, because pytest imports them by their base name."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_file_names_are_unique() -> None:
    """With two files of the same name, collection fails and no test runs."""
    names = Counter(file.name for file in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
