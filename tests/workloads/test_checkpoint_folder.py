"""workloads.train.checkpoint_folder: which checkpoints there are, and which may be used."""

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
    """Write a checkpoint as the program does, with two files."""
    begin(folder, step)
    partial = partial_folder(folder, step)
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (partial / name).write_text(content + name)
    sums = {path.name: checksum(path) for path in partial.iterdir()}
    commit(folder, Manifest(step, sums, {"sequence": 8 * step}), keep=keep)
    return step_folder(folder, step)


def names(folder: Path) -> list[str]:
    """Return the usable checkpoints, best first."""
    return [path.name for path in complete_checkpoints(folder)]


def test_newest_first_and_no_more_than_are_kept(tmp_path: Path) -> None:
    """Older ones than the newest `keep` are removed with the next commit."""
    for step in (5, 10, 15):
        save(tmp_path, step, keep=2)

    assert names(tmp_path) == ["step-00000015", "step-00000010"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000010", "step-00000015"]


def test_what_a_crash_left_half_written_is_not_used_and_goes_with_the_next_one(tmp_path: Path) -> None:
    """A folder without its last rename does not count."""
    save(tmp_path, 5)
    begin(tmp_path, 10)

    assert names(tmp_path) == ["step-00000005"]
    begin(tmp_path, 15)
    assert not partial_folder(tmp_path, 10).exists()


def test_a_branch_that_was_left_is_not_taken_up_again(tmp_path: Path) -> None:
    """After a resume from step 5, step 20 of the branch before is not the newest, though its number is higher; reaching it replaces it."""
    save(tmp_path, 5)
    save(tmp_path, 20, content="old branch")
    save(tmp_path, 10)

    assert names(tmp_path) == ["step-00000010", "step-00000005"]
    save(tmp_path, 20, content="new branch")
    assert (step_folder(tmp_path, 20) / "__0_0.distcp").read_text() == "new branch__0_0.distcp"


@pytest.mark.parametrize("latest", [None, "", "step-00000099\n", "\x00\xff"])
def test_without_a_readable_latest_the_step_decides(tmp_path: Path, latest: str | None) -> None:
    """A lost, empty or senseless `latest` costs nothing."""
    for step in (5, 10):
        save(tmp_path, step)
    if latest is None:
        (tmp_path / "latest").unlink()
    else:
        (tmp_path / "latest").write_text(latest, "latin-1")

    assert names(tmp_path) == ["step-00000010", "step-00000005"]


def test_damage_is_found_in_the_part_that_a_rank_checks(tmp_path: Path) -> None:
    """Files are shared out over the ranks; the one that has the damaged file sees it."""
    path = save(tmp_path, 5)
    manifest = read_manifest(path)
    (path / "__1_0.distcp").write_text("other")

    assert damage(path, manifest, part=0, parts=2) == ""
    assert damage(path, manifest, part=1, parts=2) == "__1_0.distcp does not have the checksum of the manifest"
    (path / "__0_0.distcp").unlink()
    assert damage(path, manifest, part=0, parts=2) == "__0_0.distcp is missing"


def test_a_checkpoint_that_is_set_aside_is_kept_but_not_counted(tmp_path: Path) -> None:
    """The damaged folder stays for inspection under another name, and a second one of the same step replaces it."""
    save(tmp_path, 5)
    for content in ("first", "second"):
        save(tmp_path, 10, content=content)
        set_aside(step_folder(tmp_path, 10))

    assert names(tmp_path) == ["step-00000005"]
    assert (tmp_path / "step-00000010.corrupt/__0_0.distcp").read_text() == "second__0_0.distcp"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "\x00"])
def test_a_manifest_that_is_none_is_damage(tmp_path: Path, text: str) -> None:
    """Anything but a manifest is an error with the file's name."""
    path = save(tmp_path, 5)
    (path / "manifest.json").write_text(text)

    with pytest.raises(DamagedError, match="step-00000005"):
        read_manifest(path)


def test_a_manifest_of_another_format_or_out_of_reach_is_no_damage(tmp_path: Path) -> None:
    """What another version wrote, or what cannot be read just now, may be good: it must not be set aside."""
    path = save(tmp_path, 5)
    (path / "manifest.json").write_text('{"format": 2, "step": 1, "files": {}, "facts": {}}')
    for folder in (path, tmp_path / "not mounted"):
        with pytest.raises(StorageError, match=r"step-00000005|not mounted") as raised:
            read_manifest(folder)

        assert not isinstance(raised.value, DamagedError)


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    """No folder means that nothing was written; any other failure to look is an error."""
    (tmp_path / "file").touch()

    assert complete_checkpoints(tmp_path / "none") == []
    with pytest.raises(NotADirectoryError):
        complete_checkpoints(tmp_path / "file")


def test_an_old_checkpoint_that_cannot_be_removed_does_not_spoil_the_new_one(tmp_path: Path) -> None:
    """An old one moved to another disk behind a link: the new one is complete and the latest, what is left is told, and counts no more."""
    save(tmp_path, 5)
    (tmp_path / "disk").mkdir()
    step_folder(tmp_path, 5).rename(tmp_path / "disk/step-00000005")
    step_folder(tmp_path, 5).symlink_to(tmp_path / "disk/step-00000005")
    begin(tmp_path, 10)
    left = commit(tmp_path, Manifest(10, {}, {}), keep=1)

    assert left.startswith("step-00000005 could not be removed: ")
    assert names(tmp_path) == ["step-00000010"]
    save(tmp_path, 15)
    assert names(tmp_path) == ["step-00000015", "step-00000010"]


def test_a_kill_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    """A process that ends before its 1st, 2nd, … change of the folder, with one kept and a left branch in the way: old or new is whole."""
    seen, moment, code = set(), 0, KILLED
    while code == KILLED:
        folder = tmp_path / str(moment)
        for step in (10, 5):
            save(folder, step, keep=1, content="left branch" if step == 10 else "old")
        code = fork_and_end_at(moment, partial(save, folder, 10, keep=1, content="new"))
        best = complete_checkpoints(folder)[0]
        manifest = read_manifest(best)

        assert damage(best, manifest, part=0, parts=1) == ""
        assert (best / "__0_0.distcp").read_text() in {"old__0_0.distcp", "new__0_0.distcp"}
        assert save(folder, 15) in complete_checkpoints(folder)
        assert not list(folder.glob("*.partial")) + list(folder.glob("*.removed"))
        seen.add(best.name)
        moment += 1

    assert code == 0
    assert moment > 10
    assert seen == {"step-00000005", "step-00000010"}


KILLED = 9
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def fork_and_end_at(moment: int, work: Callable[[], object]) -> int:
    """Do work in a child that ends without a word before its change number `moment`; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = [moment]

    def count(event: str, _arguments: object) -> None:
        if event in CHANGES:
            if not left[0]:
                os._exit(KILLED)
            left[0] -= 1

    sys.addaudithook(count)
    work()
    os._exit(0)


def test_a_left_branch_stays_left_when_the_latest_is_set_aside(tmp_path: Path) -> None:
    """After a resume from step 5, damage of step 10 leads back to step 5, not to step 20 of the branch before."""
    for step in (5, 20, 10):
        save(tmp_path, step)
    set_aside(step_folder(tmp_path, 10))

    assert names(tmp_path) == ["step-00000005"]
    set_aside(step_folder(tmp_path, 5))
    assert names(tmp_path) == []
    assert unusable(tmp_path) == ["step-00000005.corrupt", "step-00000010.corrupt", "step-00000020"]
