"""primus_bootstrap.launch.ranks.rank: output files, signals and exit records, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from primus_bootstrap.launch import zipapp_file
from primus_bootstrap.launch.ranks import rank, rank_log
from tests.unit.test_launch_rank import SEGV, TERM, ended, record, run, words
from tests.waiting import LIMIT_S, until


def start(run_dir: Path, script: str) -> subprocess.Popen[bytes]:
    """Start one rank with a Python program that prints `ready`, and wait for that line."""
    process = subprocess.Popen(words(run_dir, sys.executable, "-c", script))
    wait_for(run_dir, "ready")
    return process


def wait_for(run_dir: Path, text: str, number: int = 0) -> None:
    """Wait until a rank's log contains a text."""
    path = rank_log.log_path(run_dir, number)
    until(lambda: path.is_file() and text in path.read_text(), f"{text} in {path}")


def gone(pid: int) -> bool:
    """Return whether a process that is not our child has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_both_streams_are_in_the_logs_of_the_rank(tmp_path: Path) -> None:
    """The text log has the lines in order; the JSON log adds time, node and rank."""
    before = time.time()
    done = run(tmp_path, "bash", "-c", "echo out; echo err >&2; printf last", RANK="3", WORLD_SIZE="4", PRIMUS_NODE="n1")
    events = [json.loads(line) for line in rank_log.events_path(tmp_path, 3).read_text().splitlines()]

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert rank_log.log_path(tmp_path, 3).read_text() == "out\nerr\nlast\n"
    assert [(event["node"], event["rank"], event["text"]) for event in events] == [("n1", 3, text) for text in ("out", "err", "last")]
    assert all(before - 1 < event["time"] < time.time() + 1 for event in events)


@pytest.mark.parametrize(("script", "code", "number"), [("exit 3", 3, 0), ("kill -SEGV $$", 128 + SEGV, SEGV), ("exit 75", 75, 0)])
def test_the_record_has_exit_code_and_signal(tmp_path: Path, script: str, code: int, number: int) -> None:
    """They are also returned as a shell does."""
    done = run(tmp_path, "bash", "-c", script)
    kept = record(tmp_path)

    assert (done.returncode, kept.exit_code, kept.signal) == (code, code, number)
    assert kept.ended is not None
    assert kept.started <= kept.ended


def test_a_missing_program_exits_with_127(tmp_path: Path) -> None:
    """The rank's log has the reason."""
    done = run(tmp_path, "/no/such/program")

    assert (done.returncode, record(tmp_path).exit_code) == (127, 127)
    assert "/no/such/program cannot be started: No such file or directory\n  fix:" in rank_log.log_path(tmp_path, 0).read_text()


def test_secrets_of_the_environment_are_masked_in_both_files(tmp_path: Path) -> None:
    """A program may print its environment."""
    run(tmp_path, "env", API_TOKEN="s3cr3t-value-1", PRIVATE_KEY="line-one-of-it\nline-two-of-it")
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())

    assert "API_TOKEN=***" in written
    assert not [secret for secret in ("s3cr3t", "line-one", "line-two") if secret in written]


def test_a_progress_bar_is_one_line(tmp_path: Path) -> None:
    """A line that was overwritten a hundred times keeps its last text."""
    run(tmp_path, "bash", "-c", r"printf ' 1%%\r 2%%\r100%%\r\ndone\n'")

    assert rank_log.log_path(tmp_path, 0).read_text() == "100%\ndone\n"


def test_a_megabyte_without_a_line_break_is_complete(tmp_path: Path) -> None:
    """Long lines are split; nothing is lost."""
    run(tmp_path, sys.executable, "-c", "import sys; sys.stdout.write('x' * 1000000)")

    assert rank_log.log_path(tmp_path, 0).read_text().replace("\n", "") == "x" * 1000000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once(tmp_path: Path, number: signal.Signals) -> None:
    """Two signals reach the program as one; it writes its checkpoint and exits with 75."""
    script = (
        "import signal, sys, time\n"
        "received = []\n"
        f"signal.signal({int(number)}, lambda *_: (received.append(1), print('signal', len(received))))\n"
        "print('ready')\n"
        "while not received: time.sleep(0.01)\n"
        "time.sleep(0.7); sys.exit(75)\n"
    )
    process = start(tmp_path, script)
    process.send_signal(number)
    wait_for(tmp_path, "signal 1")
    process.send_signal(number)

    assert process.wait(20) == 75
    assert "signal 2" not in rank_log.log_path(tmp_path, 0).read_text()
    assert record(tmp_path).stopped_at is not None


def test_a_program_ended_by_the_signal_is_recorded_as_ended_by_others(tmp_path: Path) -> None:
    """If one rank fails, torchrun stops the others; they are not the cause."""
    process = start(tmp_path, "import time; print('ready'); time.sleep(60)")
    process.send_signal(signal.SIGTERM)

    assert process.wait(20) == 128 + TERM
    assert record(tmp_path).ended_by_others


def test_the_program_ends_with_its_supervisor(tmp_path: Path) -> None:
    """A rank that does not stop is killed by torchrun; its program must not stay on the GPU."""
    process = start(tmp_path, "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(60)")
    process.kill()
    process.wait(20)

    until(lambda: gone(record(tmp_path).pid), "the end of the program", limit_s=10)


def test_the_rank_ends_with_its_parent(tmp_path: Path) -> None:
    """If torchrun is killed, the kernel sends SIGTERM to its ranks."""
    command = words(tmp_path, sys.executable, "-c", "import time; print('ready'); time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"])
    wait_for(tmp_path, "ready")
    parent.kill()
    parent.wait(20)

    until(lambda: gone(record(tmp_path).pid), "the end of the program", limit_s=10)
    assert ended(tmp_path).exit_code == 128 + TERM


def test_a_grandchild_with_the_pipe_open_does_not_block_the_rank(tmp_path: Path) -> None:
    """A process that the program leaves behind must not block the job."""
    started = time.monotonic()
    done = run(tmp_path, "bash", "-c", "sleep 30 & echo bye")

    assert (done.returncode, rank_log.log_path(tmp_path, 0).read_text()) == (0, "bye\n")
    assert time.monotonic() - started < 10


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_stops_the_log_and_not_the_program(tmp_path: Path) -> None:
    """The program runs to its end; the record has the error and the number of lost lines."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        done = run(
            disk,
            "bash",
            "-c",
            "echo first; sleep 1; for i in $(seq 1999); do echo line $i of the output; done; echo the last words; exit 5",
        )
        kept = record(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)

    assert (done.returncode, kept.exit_code) == (5, 5)
    assert "No space left on device" in kept.problem
    assert kept.last_lines[-1] == "the last words"
    assert kept.lines == 2001
    assert 0 < kept.dropped < kept.lines


def test_a_second_run_in_the_folder_appends(tmp_path: Path) -> None:
    """Reading returns the newest run only."""
    run(tmp_path, "echo", "first")
    run(tmp_path, "echo", "second")
    lines = rank_log.read_lines(tmp_path, record(tmp_path), limit_bytes=1000)

    assert rank_log.log_path(tmp_path, 0).read_text() == "first\nsecond\n"
    assert [(line.number, line.text) for line in lines] == [(1, "second")]


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    """Line numbers are still those of the whole log."""
    run(tmp_path, "seq", "1000")
    lines = rank_log.read_lines(tmp_path, record(tmp_path), limit_bytes=400)

    assert [(line.number, line.text) for line in lines][-1] == (1000, "1000")
    assert all(line.text == str(line.number) for line in lines)
    assert 2 < len(lines) < 20


def test_the_prefix_starts_a_rank_from_the_zipapp(tmp_path: Path) -> None:
    """Nodes have no checkout."""
    zipapp_file.write_zipapp(tmp_path / "launch.pyz")
    imported = f"import sys; sys.path.insert(0, {str(tmp_path / 'launch.pyz')!r}); from primus_bootstrap.launch.ranks import rank"
    code = f"{imported}; print(*rank.prefix('R', 'PY'), sep='\\n')"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT_S)

    assert done.stdout.splitlines() == ["PY", "-I", str(tmp_path / "launch.pyz"), "rank", "--run-dir", "R", "--"]


def test_the_prefix_and_a_program_run_from_any_folder(tmp_path: Path) -> None:
    """These are the words that torchrun runs."""
    command = [*rank.prefix(str(tmp_path), sys.executable), "bash", "-c", "echo from rank $RANK; exit 4"]
    done = subprocess.run(command, cwd="/", env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"}, check=False, timeout=LIMIT_S)

    assert done.returncode == 4
    assert rank_log.log_path(tmp_path, 1).read_text() == "from rank 1\n"
