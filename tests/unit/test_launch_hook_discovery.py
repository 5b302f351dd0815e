"""primus_bootstrap.launch.hooks.hook_discovery: order and owner of hooks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.hooks.hook_discovery import find_hooks, not_run

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have files of two accounts")

TASKS = ("train/pretrain", "train/posttrain", "benchmark", "benchmark/--list")


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


def test_files_that_look_like_hooks_are_reported(tmp_path: Path) -> None:
    """In the folder of the task, once for each; modules that start with _ are for the others."""
    hooks = tmp_path / "hooks/train/pretrain"
    hooks.mkdir(parents=True)
    for name in ("prepare.sh", "10_x.sh", "10-y.sh", "_shared.py", "notes.txt", "03_c.txt", "10_x.sh~"):
        (hooks / name).write_text("")

    assert not_run("train/pretrain", TASKS, tmp_path, [str(tmp_path / "hooks")]) == (
        f"{hooks}/03_c.txt is not run: the name of a hook ends with .sh or .py",
        f"{hooks}/10-y.sh is not run: the name of a hook starts with a number, as in 10_10-y.sh",
        f"{hooks}/prepare.sh is not run: the name of a hook starts with a number, as in 10_prepare.sh",
    )


def test_a_misspelt_folder_of_a_task_is_reported(tmp_path: Path) -> None:
    """Of a group, too; a folder of another task or phase, or of data, is not."""
    hooks = tmp_path / "hooks"
    for name in ("train/pretrian", "trian", "train/posttrain", "train/before", "train/tokens", "benchmark/gemm", "lib"):
        (hooks / name).mkdir(parents=True)

    assert not_run("train/pretrain", TASKS, tmp_path, ()) == (
        f"the hooks in {hooks}/trian are not run: no task has this name; did you mean train?",
        f"the hooks in {hooks}/train/pretrian are not run: no task has this name; did you mean train/pretrain?",
    )
    assert len(not_run("benchmark", TASKS, tmp_path, ())) == 1


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
