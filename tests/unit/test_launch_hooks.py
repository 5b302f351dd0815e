"""primus_bootstrap.launch.hooks.discovery: the owner of hooks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.hooks.discovery import find_hooks

if TYPE_CHECKING:
    from pathlib import Path

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have files of two accounts")


def project(folder: Path) -> Path:
    """Create a project with one general hook and one hook of a task."""
    for name in ("hooks/10_a.sh", "hooks/train/20_b.sh"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder


def found(folder: Path, *named: str) -> list[tuple[str, str]]:
    """Return name and origin of the hooks that are not built-in."""
    steps = find_hooks("train/pretrain", folder, named, folder / "run")
    return [(step.path.rpartition("/")[2], step.origin) for step in steps if step.origin != "built-in"]


@ROOT_ONLY
@pytest.mark.parametrize("foreign", ["hooks", "hooks/train", "hooks/train/20_b.sh"])
def test_hooks_of_another_account_are_an_error(tmp_path: Path, foreign: str) -> None:
    """Their owner could run code as the user who starts a run; a folder named with --hooks is trusted."""
    folder = project(tmp_path)
    assert found(folder) == [("10_a.sh", "project"), ("20_b.sh", "project")]
    os.chown(folder / foreign, 4999, 4999)
    with pytest.raises(UsageError, match="uid 4999\\); its hooks are not run"):
        find_hooks("train/pretrain", folder, (), folder / "run")

    assert found(folder, str(folder / "hooks")) == [("10_a.sh", "--hooks"), ("20_b.sh", "--hooks")]


@ROOT_ONLY
def test_a_link_to_a_hook_of_another_account_is_an_error(tmp_path: Path) -> None:
    """The owner of the target could change it at any time."""
    folder = project(tmp_path)
    theirs = tmp_path / "theirs.sh"
    theirs.write_text("")
    os.chown(theirs, 4999, 4999)
    (folder / "hooks" / "30_c.sh").symlink_to(theirs)

    with pytest.raises(UsageError, match="uid 4999"):
        find_hooks("train/pretrain", folder, (), folder / "run")
