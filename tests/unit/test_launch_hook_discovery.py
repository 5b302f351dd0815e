"""primus_bootstrap.launch.hooks.hook_discovery: order and owner of hooks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.hooks.hook_discovery import find_hooks, unnumbered_files

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


def test_general_hooks_run_first_then_by_name(tmp_path: Path) -> None:
    """Each source has the levels all, group and task. before/ equals the folder itself; files without a number are not hooks."""
    hooks = tmp_path / "hooks"
    names = ("train/pretrain/20_b.sh", "train/pretrain/before/10_a.py", "train/pretrain/after/10_z.sh", "train/05_t.sh", "90_all.sh")
    others = ("train/pretrain/notes.sh", "train/posttrain/10_no.sh", "train/pretrain/on_failure/10_f.sh", "train/pretrain/30_x.txt")
    for name in (*names, *others):
        (hooks / name).parent.mkdir(parents=True, exist_ok=True)
        (hooks / name).write_text("")
    extra = tmp_path / "own" / "train"
    extra.mkdir(parents=True)
    (extra / "01_first.sh").write_text("")
    steps = find_hooks("train/pretrain", tmp_path, [str(tmp_path / "own")], tmp_path / "run")
    actual = [(step.phase, step.origin, str(Path(step.path).relative_to(tmp_path))) for step in steps if step.origin != "built-in"]

    assert actual == [
        ("before", "project", "hooks/90_all.sh"),
        ("before", "project", "hooks/train/05_t.sh"),
        ("before", "project", "hooks/train/pretrain/before/10_a.py"),
        ("before", "project", "hooks/train/pretrain/20_b.sh"),
        ("before", "--hooks", "own/train/01_first.sh"),
        ("after", "project", "hooks/train/pretrain/after/10_z.sh"),
        ("on_failure", "project", "hooks/train/pretrain/on_failure/10_f.sh"),
    ]
    assert steps[0].origin == "built-in"


def test_hooks_run_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """2 comes before 10, with and without leading zeros, in both layouts together."""
    hooks = tmp_path / "hooks/train/pretrain"
    names = ("10_last.sh", "2_b.sh", "01_check_environment.sh", "before/03_setup_monitoring.sh", "1_z.py", "02_a.sh")
    for name in names:
        (hooks / name).parent.mkdir(parents=True, exist_ok=True)
        (hooks / name).write_text("")

    assert [name for name, _ in found(tmp_path)] == [
        "01_check_environment.sh",
        "1_z.py",
        "02_a.sh",
        "2_b.sh",
        "03_setup_monitoring.sh",
        "10_last.sh",
    ]


def test_scripts_without_a_number_are_reported(tmp_path: Path) -> None:
    """In the folder of the task, once for each; modules that start with _ are for the others."""
    hooks = tmp_path / "hooks/train/pretrain"
    hooks.mkdir(parents=True)
    for name in ("prepare.sh", "10_x.sh", "10-y.sh", "_shared.py", "notes.txt"):
        (hooks / name).write_text("")

    assert unnumbered_files("train/pretrain", tmp_path, [str(tmp_path / "hooks")]) == (str(hooks / "10-y.sh"), str(hooks / "prepare.sh"))


def test_a_missing_folder_of_hooks_is_an_error(tmp_path: Path) -> None:
    """A mistyped --hooks must not start the run without hooks."""
    with pytest.raises(UsageError, match="--hooks nowhere"):
        find_hooks("x", tmp_path, ["nowhere"], tmp_path)


@ROOT_ONLY
@pytest.mark.parametrize("foreign", ["hooks", "hooks/train", "hooks/train/20_b.sh"])
def test_hooks_of_another_account_are_an_error(tmp_path: Path, foreign: str) -> None:
    """Their owner could run code as the user who starts a run; a folder named with --hooks is trusted."""
    folder = project(tmp_path)
    assert found(folder) == [("10_a.sh", "project"), ("20_b.sh", "project")]
    os.chown(folder / foreign, 4999, 4999)
    with pytest.raises(UsageError, match=r"uid 4999\); its hooks are not run"):
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
