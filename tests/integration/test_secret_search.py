"""The watch for secrets that the lab's tests stand on: it finds an environment that shows one, and lets root's holders have theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab import secret_search

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as another account")
VALUE = "a-secret-of-this-test-0001"


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that another account can start a program from; pytest's own are closed to it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def found_in(folder: Path, program: str, holders: dict[str, int], user: int | None, unit: str = "") -> list[str]:
    """Return what a watch finds while a program runs with the value in its environment, as a user (None: this one) and in a unit."""
    stop, found = folder / "stop", {}
    with subprocess.Popen([program, "60"], env={"SECRET": VALUE}, user=user) as process, pytest.MonkeyPatch.context() as patch:
        if unit:
            real, cgroup = secret_search.contents, f"/proc/{process.pid}/cgroup"
            patch.setattr(secret_search, "contents", lambda path: f"0::/system.slice/{unit}\n".encode() if path == cgroup else real(path))
        watcher = threading.Thread(target=lambda: found.update(secret_search.watch({"mine": VALUE.encode()}, str(stop), holders)))
        watcher.start()
        threading.Event().wait(1.0)
        stop.touch()
        watcher.join(60)
        process.kill()
    listed: list[str] = found["found"]
    return listed


@needs_root
@pytest.mark.parametrize("name", ["redis-cli", "another"])
@pytest.mark.parametrize("user", [None, 65534])
def test_only_a_holder_of_roots_may_have_a_secret_in_its_environment(open_to_all: Path, name: str, user: int | None) -> None:
    """The same program is found under another name, and under another account whatever its name."""
    program = str(shutil.copy("/bin/sleep", open_to_all / name))
    found = found_in(open_to_all, program, {"redis-cli": 0}, user)

    assert found == ([] if name == "redis-cli" and user is None else [f"environment of {name}: mine"])


@needs_root
@pytest.mark.parametrize("unit", ["backup.service", "another.service"])
@pytest.mark.parametrize("user", [999, 65534])
def test_a_holders_unit_may_have_a_secret_as_its_own_account(open_to_all: Path, unit: str, user: int) -> None:
    """Whatever a holder's unit starts is not found; what another unit starts is, and what a person starts in any."""
    found = found_in(open_to_all, "/bin/sleep", {"backup.service": 999}, user, unit)

    assert found == ([] if unit == "backup.service" and user == 999 else ["environment of sleep: mine"])
