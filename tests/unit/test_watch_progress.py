"""primus_bootstrap.launch.watch.progress: the newest step and checkpoint, also after a crash."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import progress
from primus_bootstrap.launch.watch.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path


def write_steps(run: Path, *numbers: int, tail: str = "") -> None:
    """Append steps, and an incomplete line."""
    with (run / "steps.jsonl").open("a") as file:
        file.write("".join(json.dumps({"step": number, "padding": "x" * 200}) + "\n" for number in numbers) + tail)


def test_only_the_steps_of_this_attempt_count(tmp_path: Path) -> None:
    """After a resume the file continues with smaller numbers."""
    write_steps(tmp_path, *range(1, 48))
    offset = progress.steps_size(tmp_path)
    nothing = progress.read_progress(tmp_path, tmp_path, steps_offset=offset)
    write_steps(tmp_path, 41, 42)

    assert nothing == Progress()
    assert progress.read_progress(tmp_path, tmp_path, steps_offset=offset) == Progress(41, 42)
    assert progress.read_progress(tmp_path, tmp_path, steps_offset=0) == Progress(1, 42)


def test_incomplete_lines_are_skipped_at_both_ends(tmp_path: Path) -> None:
    """A crash leaves an incomplete line, and the next attempt appends to it."""
    write_steps(tmp_path, 1, tail='{"step": 2, "lo')
    offset = progress.steps_size(tmp_path)
    write_steps(tmp_path, 3, 4, 5, tail='{"step": 6, "lo')

    assert progress.read_progress(tmp_path, tmp_path, steps_offset=offset) == Progress(3, 5)


def test_the_end_of_a_long_file_is_found(tmp_path: Path) -> None:
    """A run has millions of steps; only the ends are read."""
    write_steps(tmp_path, *range(1, 3001))

    assert progress.read_progress(tmp_path, tmp_path, steps_offset=0) == Progress(1, 3000)


def test_the_gauge_counts_if_the_file_is_late(tmp_path: Path) -> None:
    """metrics.prom is replaced at each step, so it does not show which step was the first."""
    (tmp_path / "metrics.prom").write_text(
        '# HELP primus_train_step Steps\n# TYPE primus_train_step gauge\nprimus_train_step{run="a}",host="b"} 9\n'
    )
    alone = progress.read_progress(tmp_path, tmp_path, steps_offset=0)
    write_steps(tmp_path, 7, 8)

    assert alone == Progress(None, 9)
    assert progress.read_progress(tmp_path, tmp_path, steps_offset=0) == Progress(7, 9)


def test_the_newest_complete_checkpoint_counts(tmp_path: Path) -> None:
    """By its step; None without one."""
    nothing = progress.read_progress(tmp_path, tmp_path / "checkpoints", steps_offset=0)
    (tmp_path / "checkpoints/step-00000020").mkdir(parents=True)
    (tmp_path / "checkpoints/step-00000020/manifest.json").write_text("{}")

    assert nothing.checkpoint is None
    assert progress.read_progress(tmp_path, tmp_path / "checkpoints", steps_offset=0).checkpoint == 20
