"""primus_bootstrap.launch.checks.job: limits of the run itself."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks.limits import limit
from tests.unit.checks_rig import plain_machine

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


@pytest.mark.parametrize(("size_gib", "verdict"), [(0.0625, "fail"), (7.9, "fail"), (8, "pass")])
def test_small_shared_memory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_gib: float, verdict: str) -> None:
    """The record has the limit and its source."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=size_gib * GIB))
    (record,) = plain_machine(tmp_path).records("shm")

    assert (record.verdict, record.expected, record.source) == (verdict, ">= 8", limit("shared_memory_gib").source)


def test_unreadable_shared_memory_is_unknown(tmp_path: Path) -> None:
    """A node without /dev/shm."""
    (record,) = plain_machine(tmp_path).records("shm")

    assert (record.verdict, record.fix) == ("unknown", "mount /dev/shm")
