"""The search for secrets in process environments that the lab's tests use."""

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
    """A folder from which other accounts can start programs; pytest's folders are closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def found_in(folder: Path, program: str, holders: dict[str, int], user: int | None, unit: str = "") -> list[str]:
    """Return the findings while a program with the secret runs, as a user (None: the current one) and in a unit."""
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
def test_only_root_holders_may_have_the_secret(open_to_all: Path, name: str, user: int | None) -> None:
    """The same program is reported with another name or another account."""
    program = str(shutil.copy("/bin/sleep", open_to_all / name))
    found = found_in(open_to_all, program, {"redis-cli": 0}, user)

    assert found == ([] if name == "redis-cli" and user is None else [f"environment of {name}: mine"])


@needs_root
@pytest.mark.parametrize("unit", ["backup.service", "another.service"])
@pytest.mark.parametrize("user", [999, 65534])
def test_unit_of_a_holder_may_have_the_secret_as_its_account(open_to_all: Path, unit: str, user: int) -> None:
    """Programs of other units and other accounts are reported."""
    found = found_in(open_to_all, "/bin/sleep", {"backup.service": 999}, user, unit)

    assert found == ([] if unit == "backup.service" and user == 999 else ["environment of sleep: mine"])
