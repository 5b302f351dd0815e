"""primus_bootstrap.launch.follow: what people see while ranks run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch import follow, rank_log
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def log(run_dir: Path, rank: int) -> Path:
    """Return a rank's log, its folder made."""
    path = rank_log.log_path(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_lines_come_while_they_are_written_with_node_and_rank(tmp_path: Path) -> None:
    """A log that is not there yet is waited for; other ranks stay silent."""
    shown: list[str] = []
    follower = follow.Follower(tmp_path, "gpu001", (8,), shown.append)
    follower.start()
    log(tmp_path, 8).write_text("step 1\nstep")
    log(tmp_path, 9).write_text("not shown\n")
    seen_before_the_end = list(until(lambda: shown, "the first line"))
    with log(tmp_path, 8).open("a") as file:
        file.write(" 2\nno line break")
    follower.stop()

    assert seen_before_the_end == ["[gpu001/8] step 1"]
    assert shown == ["[gpu001/8] step 1", "[gpu001/8] step 2", "[gpu001/8] no line break"]


def test_what_a_log_holds_from_before_is_not_shown_again(tmp_path: Path) -> None:
    """A run folder that is used again has logs already."""
    log(tmp_path, 0).write_text("of yesterday\n")
    shown: list[str] = []
    follower = follow.Follower(tmp_path, "n1", (0,), shown.append)
    with log(tmp_path, 0).open("a") as file:
        file.write("of today\n")
    follower.start()
    follower.stop()

    assert shown == ["[n1/0] of today"]


def test_stopping_shows_everything_that_a_burst_left(tmp_path: Path) -> None:
    """The last megabytes before a crash are the ones that matter."""
    shown: list[str] = []
    follower = follow.Follower(tmp_path, "n1", (0,), shown.append)
    follower.start()
    log(tmp_path, 0).write_text("".join(f"line {number} {'x' * 100}\n" for number in range(50000)))
    follower.stop()

    assert len(shown) == 50000
    assert shown[-1].startswith("[n1/0] line 49999 ")
