"""Module `account_quotas`: the file that stores exact limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.test_role_juicefs_quotas import GIB, Limit, quotas

if TYPE_CHECKING:
    from pathlib import Path


def test_exact_limits_are_stored_in_a_root_folder(tmp_path: Path) -> None:
    """Invalid content counts as empty; a link in its place is refused."""
    volume = quotas.Volume({"kind": "user", "record_folder": str(tmp_path)})
    before = volume.recorded()
    volume.record({"uid:7": Limit(1500 * GIB, 40)})
    written = volume.recorded()
    (tmp_path / quotas.RECORD).write_text("[1", encoding="utf-8")
    broken = volume.recorded()
    (tmp_path / quotas.RECORD).unlink()
    (tmp_path / quotas.RECORD).symlink_to("/etc/passwd")

    assert (before, written, broken) == ({}, {"uid:7": Limit(1500 * GIB, 40)}, {})
    with pytest.raises(OSError, match="a symbolic link"):
        volume.recorded()
