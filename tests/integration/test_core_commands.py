"""Tests of primus_bootstrap.core.commands."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from primus_bootstrap.core import commands
from primus_bootstrap.core.commands import Completed, OutputTooLargeError, run_command
from tests.waiting import until

TIMEOUT_S = 60.0


def test_the_result_has_exit_code_and_both_outputs() -> None:
    """A failed program raises no error."""
    assert run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=TIMEOUT_S) == Completed(3, "out\n", "err\n")


def test_a_signal_is_a_negative_exit_code() -> None:
    """This distinguishes a killed program from one that exited."""
    assert run_command(["sh", "-c", "kill -TERM $$"], timeout_s=TIMEOUT_S).code == -15


@pytest.mark.parametrize(("errors", "text"), [("replace", "a\N{REPLACEMENT CHARACTER}b"), ("surrogateescape", "a\udcffb")])
def test_bytes_that_are_not_utf_8_follow_the_policy(errors: str, text: str) -> None:
    """By default they are replaced in both outputs."""
    done = run_command(["sh", "-c", r"printf 'a\377b'; printf 'a\377b' >&2"], timeout_s=TIMEOUT_S, errors=errors)

    assert (done.stdout, done.stderr) == (text, text)


def test_a_program_that_takes_too_long_is_killed() -> None:
    """The error is a TimeoutError with program and limit; it is an OSError."""
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"sleep did not end within 0\.2 s"):
        run_command(["sleep", "600"], timeout_s=0.2)

    assert time.monotonic() - began < TIMEOUT_S
    assert issubclass(TimeoutError, OSError)


def test_a_program_that_closes_its_output_and_continues_is_killed() -> None:
    """The limit applies to the program, not only to its output."""
    with pytest.raises(TimeoutError):
        run_command(["sh", "-c", "exec >&- 2>&-; exec sleep 600"], timeout_s=0.5)


def test_the_children_of_a_killed_program_are_killed(tmp_path: Path) -> None:
    """For example, a hanging `Match exec` of ssh does not stay behind."""
    with pytest.raises(TimeoutError):
        run_command(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; wait"], timeout_s=2)
    pid = int((tmp_path / "pid").read_text())

    until(lambda: not Path(f"/proc/{pid}/cmdline").is_file() or not Path(f"/proc/{pid}/cmdline").read_bytes())


def test_a_missing_program_is_an_oserror() -> None:
    """The error has the name of the program."""
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run_command(["no-such-program"], timeout_s=TIMEOUT_S)


def test_large_input_and_output_pass_at_the_same_time() -> None:
    """Neither side waits for the other, although both exceed the size of a pipe."""
    data = b"0123456789abcdef" * 100_000

    assert run_command(["cat"], timeout_s=TIMEOUT_S, stdin=data).stdout.encode() == data


def test_a_program_that_does_not_read_its_input_ends_normally() -> None:
    """A closed input is no error."""
    assert run_command(["true"], timeout_s=TIMEOUT_S, stdin=b"x" * 10_000_000).code == 0


def test_the_default_input_is_empty() -> None:
    """A program never waits for the terminal of the caller."""
    assert run_command(["cat"], timeout_s=TIMEOUT_S) == Completed(0, "", "")


def test_stdout_has_a_limit() -> None:
    """A program with endless output is killed before it fills the memory."""
    with pytest.raises(OutputTooLargeError, match="yes wrote more than 1000000 bytes"):
        run_command(["yes"], timeout_s=TIMEOUT_S, max_output_bytes=1_000_000)


def test_the_end_of_a_long_stderr_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs report errors in their last lines."""
    monkeypatch.setattr(commands, "_KEPT_ERROR_BYTES", 100)
    program = "import sys; [sys.stderr.write(f'line {n}\\n') for n in range(100000)]"
    done = run_command([sys.executable, "-c", program], timeout_s=TIMEOUT_S)

    assert len(done.stderr) == 100
    assert done.last_words() == "line 99999"


def test_stdout_can_go_to_a_file(tmp_path: Path) -> None:
    """Then output of any size is possible."""
    with (tmp_path / "out").open("wb") as file:
        done = run_command(["sh", "-c", "echo out; echo err >&2"], timeout_s=TIMEOUT_S, stdout_file=file)

    assert ((tmp_path / "out").read_text(), done) == ("out\n", Completed(0, "", "err\n"))


def test_environment_and_working_folder_are_passed_on(tmp_path: Path) -> None:
    """The environment replaces that of the tests."""
    done = run_command(["/bin/sh", "-c", "pwd; echo $GIVEN-$HOME"], timeout_s=TIMEOUT_S, env={"GIVEN": "x"}, cwd=tmp_path)

    assert done.stdout == f"{tmp_path}\nx-\n"
