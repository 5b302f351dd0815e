"""primus_bootstrap.launch.ranks.follow: the output of ranks on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.ranks import follow
from tests.unit.test_launch_follow import log
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def test_new_lines_are_shown_with_node_and_rank(tmp_path: Path) -> None:
    """The log may be created later; other ranks are not shown."""
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
