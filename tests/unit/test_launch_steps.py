"""primus_bootstrap.launch.hooks.discovery: which hooks run, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.hooks.discovery import find_hooks


def test_general_hooks_run_first_then_by_name(tmp_path: Path) -> None:
    """Each source has the levels all, group and task. before/ equals the folder itself; files without a number are not hooks."""
    hooks = tmp_path / "hooks"
    names = ("train/pretrain/20_b.sh", "train/pretrain/before/10_a.py", "train/pretrain/after/10_z.sh", "train/05_t.sh", "90_all.sh")
    others = ("train/pretrain/notes.sh", "train/posttrain/10_no.sh", "train/pretrain/on_failure/10_f.sh", "train/pretrain/30_x.txt")
    for name in (*names, *others):
        (hooks / name).parent.mkdir(parents=True, exist_ok=True)
        (hooks / name).write_text("")
    own = tmp_path / "own" / "train"
    own.mkdir(parents=True)
    (own / "01_first.sh").write_text("")
    found = find_hooks("train/pretrain", tmp_path, [str(tmp_path / "own")], tmp_path / "run")
    mine = [(step.phase, step.origin, str(Path(step.path).relative_to(tmp_path))) for step in found if step.origin != "built-in"]

    assert mine == [
        ("before", "project", "hooks/90_all.sh"),
        ("before", "project", "hooks/train/05_t.sh"),
        ("before", "project", "hooks/train/pretrain/before/10_a.py"),
        ("before", "project", "hooks/train/pretrain/20_b.sh"),
        ("before", "--hooks", "own/train/01_first.sh"),
        ("after", "project", "hooks/train/pretrain/after/10_z.sh"),
        ("on_failure", "project", "hooks/train/pretrain/on_failure/10_f.sh"),
    ]
    assert found[0].origin == "built-in"


def test_a_missing_folder_of_hooks_is_an_error(tmp_path: Path) -> None:
    """A mistyped --hooks must not start the run without hooks."""
    with pytest.raises(UsageError, match="--hooks nowhere"):
        find_hooks("x", tmp_path, ["nowhere"], tmp_path)
