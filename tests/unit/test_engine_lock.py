"""The lock of a cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.lock import cluster_lock, read_holder

if TYPE_CHECKING:
    from pathlib import Path


def test_the_holder_can_be_read_while_the_lock_is_held(tmp_path: Path) -> None:
    """Others can read verb, run and pid; after the release there is no holder."""
    state = tmp_path / "state"
    with cluster_lock(state, verb="diff", run="r7"):
        holder = read_holder(state)

    assert holder is not None
    assert (holder.verb, holder.run, holder.pid) == ("diff", "r7", os.getpid())
    assert read_holder(state) is None
    assert state.stat().st_mode & 0o777 == 0o700


def test_a_state_folder_that_cannot_be_created_is_a_plan_error(tmp_path: Path) -> None:
    """The error has path, cause and fix."""
    (tmp_path / "file").touch()

    with pytest.raises(PlanError, match="file/state: Not a directory") as caught, cluster_lock(tmp_path / "file/state", verb="v", run="r"):
        pass

    assert "PRIMUS_STATE_DIR" in caught.value.fix
