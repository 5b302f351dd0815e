"""What waits for Redis: a start loads all it holds, which systemd waits for as long as it takes, and a run for a stated time."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from pathlib import Path

FILES = content.roles_dir() / "redis" / "files"
SCRIPT = (FILES / "await.sh").read_text(encoding="utf-8") + (FILES / "take_up.sh").read_text(encoding="utf-8")
# The states of the unit, one a question, of which the last one stays; a restart is written down.
SYSTEMCTL = """#!/bin/sh
cd "$STUB"
state=$(head -n 1 states)
case $1 in
    is-active) [ "${state%% *}" = active ] ;;
    show)
        [ "$(wc -l < states)" = 1 ] || { tail -n +2 states > left; mv left states; }
        echo "ActiveState=${state%% *}"; echo "SubState=${state##* }" ;;
    restart) echo "$@" >> asked ;;
esac
"""
LOADING, UP = "activating start", "active running"


def take_up(folder: Path, *states: str, noted: str = "now", wait_s: int = 5, mode: str = "do") -> tuple[int, str, str, list[str]]:
    """Run the script where the unit goes through these states; return its exit code, output, complaint, and the restarts."""
    stated = folder / "redis.conf"
    stated.write_text("now", encoding="utf-8")
    note = f"{hashlib.sha256(noted.encode()).hexdigest()}  {stated}\n"
    for name in ("applied", "starting"):
        (folder / name).write_text(note, encoding="utf-8")
    (folder / "states").write_text("\n".join(states) + "\n", encoding="utf-8")
    for name, text in {"systemctl": SYSTEMCTL, "journalctl": "#!/bin/sh\necho the lines of its log\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    words = ["/bin/sh", "-s", "redis-server.service", str(folder / "applied"), str(folder / "starting"), str(wait_s), mode]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB": str(folder)}
    done = subprocess.run(words, input=SCRIPT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    asked = folder / "asked"
    return done.returncode, done.stdout, done.stderr, asked.read_text(encoding="utf-8").splitlines() if asked.exists() else []


def test_systemd_ends_no_start_that_loads() -> None:
    """After its 90 s it would end and begin anew, and a Redis that takes longer would never serve again."""
    lines = render("redis", "unit.conf.j2", __redis_user_namespaces={"rc": 0}).splitlines()

    assert "TimeoutStartSec=infinity" in lines


def test_one_that_runs_with_these_files_is_left_alone(tmp_path: Path) -> None:
    """A second run changes nothing."""
    assert take_up(tmp_path, UP) == (0, "", "", [])


def test_one_that_loads_is_waited_for_and_not_begun_anew(tmp_path: Path) -> None:
    """A restart would begin from the beginning: with a run an hour it would never come to its end."""
    assert take_up(tmp_path, LOADING, LOADING, LOADING, UP) == (0, "", "", [])


def test_a_longer_wait_ends_with_what_goes_on(tmp_path: Path) -> None:
    """The run fails, the start does not."""
    code, _, said, restarts = take_up(tmp_path, LOADING, wait_s=1)

    assert (code, restarts) == (1, [])
    assert "Redis still loads its data after 1 s, and goes on. Fix: wait" in said


@pytest.mark.parametrize(
    ("states", "noted"),
    [((LOADING, LOADING, UP), "before"), ((UP, "inactive dead", LOADING, UP), "before"), (("inactive dead", LOADING, UP), "now")],
)
def test_one_with_other_files_or_none_that_runs_is_started(tmp_path: Path, states: tuple[str, ...], noted: str) -> None:
    """Without waiting for systemd, which would wait for ever; the moment between stop and start is not taken for an end."""
    code, out, _, restarts = take_up(tmp_path, *states, noted=noted)

    assert (code, out, restarts) == (0, "stale\n", ["restart --no-block redis-server.service"])


@pytest.mark.parametrize("state", ["failed failed", "activating auto-restart"])
def test_a_start_that_ended_is_told_with_its_log(tmp_path: Path, state: str) -> None:
    """Nobody waits half an hour for what has failed in a second."""
    code, _, said, _ = take_up(tmp_path, "inactive dead", state, noted="before", wait_s=30)

    assert code == 1
    assert "the lines of its log" in said


def test_nothing_is_touched_where_nothing_may_be(tmp_path: Path) -> None:
    """In check mode it says what it would do; one that loads these files is as it should be."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert take_up(tmp_path / "a", "inactive dead", noted="before", mode="look")[1:] == ("stale\n", "", [])
    assert take_up(tmp_path / "b", LOADING, mode="look") == (0, "", "", [])
