"""primus_bootstrap.launch.safe_files: calls in a child process with a time limit."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.safe_files import UnsafePathError, trusted_folder, within
from tests.unit.test_safe_files import OTHER, root_only


def test_a_call_returns_or_raises() -> None:
    """Values and errors of the child are returned unchanged, also large ones."""

    def refuse() -> None:
        raise UnsafePathError("/x", "is a socket")

    assert within(30, lambda: b"x" * 300_000) == b"x" * 300_000
    with pytest.raises(UnsafePathError, match="is a socket") as error:
        within(30, refuse)
    assert error.value.path == "/x"


def test_a_call_that_exceeds_its_time_limit_is_killed() -> None:
    """The child is reaped, and the caller continues."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before, started = children.read_text(), time.monotonic()
    with pytest.raises(TimeoutError, match="no answer"):
        within(0.2, lambda: time.sleep(60))

    assert time.monotonic() - started < 20
    assert children.read_text() == before


def test_a_child_that_crashes_is_a_timeout() -> None:
    """A crash is not a value."""
    with pytest.raises(TimeoutError):
        within(30, lambda: os._exit(3))


def test_a_child_killed_while_it_answers_is_a_timeout() -> None:
    """An account can kill a child that runs as this account. A part of an answer is not an answer."""

    def answer() -> bytes:
        write = os.write

        def write_and_die(descriptor: int, data: memoryview) -> int:
            write(descriptor, data[:-10])
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.write = write_and_die  # type: ignore[assignment]  # in the child only
        return b"x" * 1000

    with pytest.raises(TimeoutError, match="before its answer was complete"):
        within(30, answer)


def test_an_error_that_cannot_be_pickled_becomes_an_oserror() -> None:
    """With the same text."""

    class LocalError(Exception):
        """A class that the parent could not find again."""

    def fail() -> None:
        raise LocalError("what happened")

    with pytest.raises((OSError, LocalError), match="what happened"):
        within(30, fail)


@root_only
def test_a_call_can_run_as_another_account(tmp_path: Path) -> None:
    """Without supplementary groups; files of root are not readable."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)

    assert within(30, lambda: (os.getuid(), os.getgid(), os.getgroups()), become=(OTHER, OTHER)) == (OTHER, OTHER, [])
    with pytest.raises(PermissionError):
        within(30, (tmp_path / "secret").read_bytes, become=(OTHER, OTHER))
    assert os.geteuid() == 0


def test_a_trusted_folder_is_opened_after_its_storage_has_responded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child detects hanging storage; the caller does not block."""
    with trusted_folder(tmp_path) as opened:
        assert opened.path == str(tmp_path)
    monkeypatch.setattr(safe_files, "open_folder", lambda *_, **__: time.sleep(60))
    with pytest.raises(TimeoutError), trusted_folder(tmp_path, timeout_s=0.2):
        pass
