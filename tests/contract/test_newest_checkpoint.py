"""The trainer and `primus_bootstrap.launch.checkpoints` find the same newest checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch import checkpoints
from workloads.train import checkpoint_folder

if TYPE_CHECKING:
    from pathlib import Path

COMPLETE = ("step-00000010", "step-00000020", "step-00000030")
HALF = ("step-00000040.partial", "step-00000050.corrupt", "step-00000060", "step-70", "step-00000080x")
# Contents of the file `latest`; None: no file.
LATEST = (
    b"step-00000020\n", b"step-00000010", b"step-00000025", b"step-00000001", b"step-00000060", b"step-99999999",
    b"step-20", b"", b"\xff", None,
)  # fmt: skip


@pytest.mark.parametrize("complete", [COMPLETE, COMPLETE[1:], ("step-99999999", "step-100000000"), ()])
@pytest.mark.parametrize("latest", LATEST)
def test_both_find_the_same_checkpoint(tmp_path: Path, complete: tuple[str, ...], latest: bytes | None) -> None:
    """`latest` may name a complete, corrupt, incomplete or missing checkpoint, or be unreadable."""
    for name in (*complete, *HALF):
        (tmp_path / name).mkdir()
    for name in (*complete, *(name for name in HALF if name != "step-00000060")):
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "step-00000090").write_text("no folder")
    if latest is not None:
        (tmp_path / "latest").write_bytes(latest)
    expected = next((path.name for path in checkpoint_folder.complete_checkpoints(tmp_path)), "")

    assert checkpoints.newest_complete(tmp_path) == expected
    assert checkpoints.step_of(expected) == (int(expected.removeprefix("step-")) if expected else None)


def test_a_missing_folder_has_no_checkpoint(tmp_path: Path) -> None:
    """Both functions return an empty result."""
    assert checkpoint_folder.complete_checkpoints(tmp_path / "none") == []
    assert checkpoints.newest_complete(tmp_path / "none") == ""
    assert checkpoints.step_of("") is None


def test_step_of_reads_the_folder_names_of_the_trainer(tmp_path: Path) -> None:
    """step_of is the inverse of step_folder."""
    assert [checkpoints.step_of(checkpoint_folder.step_folder(tmp_path, step).name) for step in (0, 7, 10**9)] == [0, 7, 10**9]
