"""workloads.train.checkpoint_folder: commit, removal, and the usable checkpoints."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from workloads.common.errors import StorageError
from workloads.train.checkpoint_folder import (
    DamagedError,
    Manifest,
    begin,
    checksum,
    commit,
    complete_checkpoints,
    damage,
    partial_folder,
    read_manifest,
    set_aside,
    step_folder,
    unusable,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def save(folder: Path, step: int, *, keep: int = 10, content: str = "weights") -> Path:
    """Write a checkpoint with two files, like the trainer."""
    begin(folder, step)
    partial = partial_folder(folder, step)
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (partial / name).write_text(content + name)
    sums = {path.name: checksum(path) for path in partial.iterdir()}
    commit(folder, Manifest(step, sums, {"sequence": 8 * step}), keep=keep)
    return step_folder(folder, step)


def names(folder: Path) -> list[str]:
    """Return the names of the usable checkpoints, newest first."""
    return [path.name for path in complete_checkpoints(folder)]


def test_a_commit_removes_the_oldest_checkpoints_beyond_keep(tmp_path: Path) -> None:
    """The usable checkpoints are listed newest first."""
    for step in (5, 10, 15):
        save(tmp_path, step, keep=2)

    assert names(tmp_path) == ["step-00000015", "step-00000010"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000010", "step-00000015"]


def test_a_partial_checkpoint_is_not_used_and_is_removed_later(tmp_path: Path) -> None:
    """By the start of the next checkpoint."""
    save(tmp_path, 5)
    begin(tmp_path, 10)

    assert names(tmp_path) == ["step-00000005"]
    begin(tmp_path, 15)
    assert not partial_folder(tmp_path, 10).exists()


def test_checkpoints_from_before_a_resume_at_an_earlier_step_are_not_used(tmp_path: Path) -> None:
    """After a resume at step 5, the old step 20 is not usable; the new step 20 replaces it."""
    save(tmp_path, 5)
    save(tmp_path, 20, content="old run")
    save(tmp_path, 10)

    assert names(tmp_path) == ["step-00000010", "step-00000005"]
    save(tmp_path, 20, content="new run")
    assert (step_folder(tmp_path, 20) / "__0_0.distcp").read_text() == "new run__0_0.distcp"


@pytest.mark.parametrize("latest", [None, "", "step-00000099\n", "\x00\xff"])
def test_without_a_valid_latest_all_complete_checkpoints_are_usable(tmp_path: Path, latest: str | None) -> None:
    """A missing, empty or invalid `latest`."""
    for step in (5, 10):
        save(tmp_path, step)
    if latest is None:
        (tmp_path / "latest").unlink()
    else:
        (tmp_path / "latest").write_text(latest, "latin-1")

    assert names(tmp_path) == ["step-00000010", "step-00000005"]


def test_each_rank_checks_its_part_of_the_files(tmp_path: Path) -> None:
    """The rank with the damaged file reports it."""
    path = save(tmp_path, 5)
    manifest = read_manifest(path)
    (path / "__1_0.distcp").write_text("other")

    assert damage(path, manifest, part=0, parts=2) == ""
    assert damage(path, manifest, part=1, parts=2) == "__1_0.distcp does not have the checksum of the manifest"
    (path / "__0_0.distcp").unlink()
    assert damage(path, manifest, part=0, parts=2) == "__0_0.distcp is missing"


def test_a_damaged_checkpoint_is_renamed_and_not_used(tmp_path: Path) -> None:
    """A second damaged checkpoint of the same step replaces it."""
    save(tmp_path, 5)
    for content in ("first", "second"):
        save(tmp_path, 10, content=content)
        set_aside(step_folder(tmp_path, 10))

    assert names(tmp_path) == ["step-00000005"]
    assert (tmp_path / "step-00000010.corrupt/__0_0.distcp").read_text() == "second__0_0.distcp"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "\x00"])
def test_an_invalid_manifest_is_damage(tmp_path: Path, text: str) -> None:
    """The error contains the file's name."""
    path = save(tmp_path, 5)
    (path / "manifest.json").write_text(text)

    with pytest.raises(DamagedError, match="step-00000005"):
        read_manifest(path)


def test_an_unreadable_manifest_or_one_of_another_format_is_not_damage(tmp_path: Path) -> None:
    """The checkpoint may be good, so it must not be renamed."""
    path = save(tmp_path, 5)
    (path / "manifest.json").write_text('{"format": 2, "step": 1, "files": {}, "facts": {}}')
    for folder in (path, tmp_path / "not mounted"):
        with pytest.raises(StorageError, match=r"step-00000005|not mounted") as raised:
            read_manifest(folder)

        assert not isinstance(raised.value, DamagedError)


def test_an_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    """A missing folder has no checkpoints."""
    (tmp_path / "file").touch()

    assert complete_checkpoints(tmp_path / "none") == []
    with pytest.raises(NotADirectoryError):
        complete_checkpoints(tmp_path / "file")


def test_a_failed_removal_does_not_fail_the_new_checkpoint(tmp_path: Path) -> None:
    """The old checkpoint is a link to another disk: the commit returns the problem, and the old one is not usable."""
    save(tmp_path, 5)
    (tmp_path / "disk").mkdir()
    step_folder(tmp_path, 5).rename(tmp_path / "disk/step-00000005")
    step_folder(tmp_path, 5).symlink_to(tmp_path / "disk/step-00000005")
    begin(tmp_path, 10)
    problem = commit(tmp_path, Manifest(10, {}, {}), keep=1)

    assert problem.startswith("step-00000005 could not be removed: ")
    assert names(tmp_path) == ["step-00000010"]
    save(tmp_path, 15)
    assert names(tmp_path) == ["step-00000015", "step-00000010"]


def test_a_kill_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    """The process is killed before its 1st, 2nd, … change of the folder: the old or the new checkpoint is complete."""
    newest, moment, code = set(), 0, KILLED
    while code == KILLED:
        folder = tmp_path / str(moment)
        for step in (10, 5):
            save(folder, step, keep=1, content="old run" if step == 10 else "old")
        code = fork_and_end_at(moment, partial(save, folder, 10, keep=1, content="new"))
        best = complete_checkpoints(folder)[0]
        manifest = read_manifest(best)

        assert damage(best, manifest, part=0, parts=1) == ""
        assert (best / "__0_0.distcp").read_text() in {"old__0_0.distcp", "new__0_0.distcp"}
        assert save(folder, 15) in complete_checkpoints(folder)
        assert not list(folder.glob("*.partial")) + list(folder.glob("*.removed"))
        newest.add(best.name)
        moment += 1

    assert code == 0
    assert moment > 10
    assert newest == {"step-00000005", "step-00000010"}


KILLED = 9
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def fork_and_end_at(moment: int, work: Callable[[], object]) -> int:
    """Run `work` in a child that exits before its change number `moment`; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    remaining = [moment]

    def count(event: str, _arguments: object) -> None:
        if event in CHANGES:
            if not remaining[0]:
                os._exit(KILLED)
            remaining[0] -= 1

    sys.addaudithook(count)
    work()
    os._exit(0)


def test_after_damage_of_the_latest_older_checkpoints_are_used(tmp_path: Path) -> None:
    """After a resume at step 5 and damage of step 10, step 5 is usable, and the old step 20 is not."""
    for step in (5, 20, 10):
        save(tmp_path, step)
    set_aside(step_folder(tmp_path, 10))

    assert names(tmp_path) == ["step-00000005"]
    set_aside(step_folder(tmp_path, 5))
    assert names(tmp_path) == []
    assert unusable(tmp_path) == ["step-00000005.corrupt", "step-00000010.corrupt", "step-00000020"]
