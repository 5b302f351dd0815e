"""The script and unit settings that wait until Redis has loaded its data."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILES = content.roles_dir() / "redis" / "files"
SCRIPT = (FILES / "wait_for_start.sh").read_text(encoding="utf-8") + (FILES / "restart_if_changed.sh").read_text(encoding="utf-8")
# The states of the unit, one per query, the last one repeats; each restart is recorded.
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


def take_up(
    folder: Path, *states: str, noted: str = "now", wait_s: int = 5, mode: str = "do", script: str = SCRIPT, more: Sequence[str] = ()
) -> tuple[int, str, str, list[str]]:
    """Run a script with these unit states and further arguments; return exit code, output, errors and restarts."""
    stated = folder / "redis.conf"
    stated.write_text("now", encoding="utf-8")
    note = f"{hashlib.sha256(noted.encode()).hexdigest()}  {stated}\n"
    for name in ("applied", "starting"):
        (folder / name).write_text(note, encoding="utf-8")
    (folder / "states").write_text("\n".join(states) + "\n", encoding="utf-8")
    for name, text in {"systemctl": SYSTEMCTL, "journalctl": "#!/bin/sh\necho the lines of its log\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    words = ["/bin/sh", "-s", "redis-server.service", str(folder / "applied"), str(folder / "starting"), str(wait_s), mode, *more]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB": str(folder)}
    done = subprocess.run(words, input=script, env=environment, capture_output=True, text=True, check=False, timeout=60)
    asked = folder / "asked"
    return done.returncode, done.stdout, done.stderr, asked.read_text(encoding="utf-8").splitlines() if asked.exists() else []


def test_start_has_no_systemd_time_out() -> None:
    """After 90 s systemd would restart it, and a slow Redis would never serve."""
    lines = render("redis", "unit.conf.j2", __redis_user_namespaces={"rc": 0}).splitlines()

    assert "TimeoutStartSec=infinity" in lines


def test_current_service_is_not_restarted(tmp_path: Path) -> None:
    """A second run changes nothing."""
    assert take_up(tmp_path, UP) == (0, "", "", [])


def test_loading_service_is_waited_for(tmp_path: Path) -> None:
    """A restart would start the loading from the beginning."""
    assert take_up(tmp_path, LOADING, LOADING, LOADING, UP) == (0, "", "", [])


def test_wait_ends_with_the_current_state(tmp_path: Path) -> None:
    """The run fails, the start continues."""
    code, _, errors, restarts = take_up(tmp_path, LOADING, wait_s=1)

    assert (code, restarts) == (1, [])
    assert "Redis still loads its data after 1 s, and continues. Fix: wait" in errors


@pytest.mark.parametrize(
    ("states", "noted"),
    [((LOADING, LOADING, UP), "before"), ((UP, "inactive dead", LOADING, UP), "before"), (("inactive dead", LOADING, UP), "now")],
)
def test_stopped_or_outdated_service_is_started(tmp_path: Path, states: tuple[str, ...], noted: str) -> None:
    """The script does not block on systemd; the moment between stop and start is not a failure."""
    code, out, _, restarts = take_up(tmp_path, *states, noted=noted)

    assert (code, out, restarts) == (0, "stale\n", ["restart --no-block redis-server.service"])


@pytest.mark.parametrize("state", ["failed failed", "activating auto-restart"])
def test_failed_start_is_reported_with_its_log(tmp_path: Path, state: str) -> None:
    """The script does not wait after a failure."""
    code, _, errors, _ = take_up(tmp_path, "inactive dead", state, noted="before", wait_s=30)

    assert code == 1
    assert "the lines of its log" in errors


def test_check_mode_changes_nothing(tmp_path: Path) -> None:
    """It reports the pending change. A loading service with current files needs none."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert take_up(tmp_path / "a", "inactive dead", noted="before", mode="look")[1:] == ("stale\n", "", [])
    assert take_up(tmp_path / "b", LOADING, mode="look") == (0, "", "", [])


@pytest.mark.parametrize(
    ("recorded", "restarts"),
    [
        ("known-replica primary 10.0.0.2 6380", 0),
        ("known-sentinel primary 10.0.0.24 26379 1f", 1),
        ("known-replica primary 10.0.0.4 6380", 1),
        ("known-sentinel another 10.0.0.4 26379 1f", 0),
    ],
)
def test_sentinel_that_counts_a_host_that_left_is_restarted(tmp_path: Path, recorded: str, restarts: int) -> None:
    """Its files are unchanged if the host joined and left without an apply in between."""
    state = tmp_path / "sentinel.conf"
    state.write_text(f"sentinel monitor primary 10.0.0.1 6380 2\nsentinel {recorded}\n", encoding="utf-8")
    script = "\n".join(
        (FILES / name).read_text(encoding="utf-8") for name in ("wait_for_start.sh", "sentinel_strangers.sh", "restart_if_changed.sh")
    )
    more = ["", "30", str(state), "primary", "/client.env", "10.0.0.1,10.0.0.2,10.0.0.3"]
    code, output, _, asked = take_up(tmp_path, UP, script=script, more=more)

    assert (code, len(asked), "stale" in output) == (0, restarts, restarts == 1)
    assert take_up(tmp_path, UP, script=script, more=more, mode="look")[3] == asked
