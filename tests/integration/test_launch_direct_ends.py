"""primus_bootstrap.launch.runtimes.direct: runs that end with a full disk, by a signal, or before the program starts."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from tests.integration.launch_cli_rig import User, wait_for

if TYPE_CHECKING:
    from pathlib import Path


def test_a_full_disk_does_not_hide_the_exit_code(tmp_path: Path) -> None:
    """Log lines are lost, but hooks of after run and the exit code is the program's."""
    user = User(tmp_path)
    user.program("hooks/after/10_look.sh", "echo after with $PRIMUS_EXIT_CODE\n")
    for name in ("steps-0.jsonl", "step-0-after-10_look.log", "step-0-before-10_deterministic.log"):
        (user.run_dir / "logs" / name).mkdir(parents=True)  # a write there fails as on a full disk
    done = user.run(user.program("p.py", "print('works', flush=True)\nraise SystemExit(75)\n"), "--log-file=/dev/full")

    assert done.returncode == 75, done.stderr
    assert "after with 75" in done.stdout
    assert not done.stderr


def test_a_run_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A full disk or a log in a missing folder must not end in a traceback."""
    user = User(tmp_path)
    script = user.program("p.py", "print('started')\n")
    (user.run_dir / "plan.json").mkdir(parents=True)
    done = user.run(script)
    log = user.cli("direct", "--single", "--script", str(script), "--log-file", "none/x.log", "--")

    assert (done.returncode, log.returncode) == (3, 3), done.stderr + log.stderr
    assert done.stderr.startswith(f"primus-cli: the run cannot be prepared in {user.run_dir}: [Errno 21]")
    assert f"the log {user.project}/none/x.log cannot be written" in log.stderr
    assert "started" not in done.stdout + log.stdout


def test_the_encoding_of_the_terminal_does_not_end_a_run(tmp_path: Path) -> None:
    """The log has all characters."""
    user = User(tmp_path)
    done = user.run(user.program("p.sh", "#!/bin/sh\necho 'L\u00f6ss 1.0'\n"), PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert done.returncode == 0, done.stderr
    assert "L\\xf6ss 1.0" in done.stdout
    assert not done.stderr


def test_records_of_an_earlier_run_in_the_folder_are_ignored(tmp_path: Path) -> None:
    """The second run fails before any rank starts, and does not return the exit code of the first run."""
    user = User(tmp_path)
    first = user.run(user.program("p.py", "raise SystemExit(66)\n"))
    user.fake_program("python9", f'#!/bin/bash\n[[ $* == *rank* ]] && {{ echo broken interpreter; exit 9; }}\nexec {sys.executable} "$@"\n')
    second = user.run(user.project / "p.py", "--python=python9")

    assert (first.returncode, second.returncode) == (66, 9), second.stdout
    assert "broken interpreter" in second.stdout
    assert "exit code 66" not in second.stdout


def test_the_message_names_the_signal_that_ended_the_run(tmp_path: Path) -> None:
    """A program without checkpoints did not fail for an unknown cause."""
    user = User(tmp_path)
    script = user.program("p.py", "import os, time\nopen(os.environ['RUN_DIR'] + '/ready', 'w').close()\ntime.sleep(60)\n")
    child = user.start("--output", str(user.run_dir), "direct", "--single", "--script", str(script), "--")
    wait_for(user.run_dir / "ready")
    os.kill(child.pid, signal.SIGTERM)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 143, output
    assert "stopped by SIGTERM (exit 143)" in output
    assert "cause: unknown" not in output


def test_a_hook_of_after_can_be_interrupted(tmp_path: Path) -> None:
    """The signal that ended the run does not stop the hook; a later signal does."""
    user = User(tmp_path)
    user.program("hooks/after/10_slow.sh", 'touch "$RUN_DIR/after"\nsleep 100\n')
    script = user.program("p.py", "raise SystemExit(5)\n")
    child = user.start("--output", str(user.run_dir), "direct", "--single", "--script", str(script), "--")
    wait_for(user.run_dir / "after")
    os.kill(child.pid, signal.SIGINT)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 5, output
    assert "10_slow.sh: stopped after" in output
