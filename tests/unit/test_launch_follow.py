"""primus_bootstrap.launch.ranks.follow: the output of ranks on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.ranks import follow, rank_log

if TYPE_CHECKING:
    from pathlib import Path


def log(run_dir: Path, rank: int) -> Path:
    """Create the folder of a rank's log; return the log."""
    path = rank_log.log_path(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_earlier_lines_of_a_log_are_not_shown(tmp_path: Path) -> None:
    """A run folder that is used again already has logs."""
    log(tmp_path, 0).write_text("of yesterday\n")
    shown: list[str] = []
    follower = follow.Follower(tmp_path, "n1", (0,), shown.append)
    with log(tmp_path, 0).open("a") as file:
        file.write("of today\n")
    follower.start()
    follower.stop()

    assert shown == ["[n1/0] of today"]


def test_stopping_shows_all_remaining_lines(tmp_path: Path) -> None:
    """The last megabytes before a crash matter most."""
    shown: list[str] = []
    follower = follow.Follower(tmp_path, "n1", (0,), shown.append)
    follower.start()
    log(tmp_path, 0).write_text("".join(f"line {number} {'x' * 100}\n" for number in range(50000)))
    follower.stop()

    assert len(shown) == 50000
    assert shown[-1].startswith("[n1/0] line 49999 ")
