"""The watch for secrets that the lab's tests stand on: it finds an environment that shows one, and lets root's holders have theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import secret_search
from tests.lab.secret_search import watch

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUE = "a-secret-of-this-test-0001"


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that another account can start a program from; pytest's own are closed to it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["redis-cli", "another"])
@pytest.mark.parametrize("user", [None, 65534])
def test_only_a_holder_of_roots_may_have_a_secret_in_its_environment(open_to_all: Path, name: str, user: int | None) -> None:
    """The same program is found under another name, and under another account whatever its name."""
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root starts a process as another account")
    open_to_all.chmod(0o755)
    program = shutil.copy("/bin/sleep", open_to_all / name)
    stop, found = open_to_all / "stop", {}
    watcher = threading.Thread(target=lambda: found.update(watch({"mine": VALUE.encode()}, str(stop), ["redis-cli"])))
    with subprocess.Popen([program, "60"], env={"SECRET": VALUE}, user=user) as process:
        watcher.start()
        threading.Event().wait(1.0)
        stop.touch()
        watcher.join(60)
        process.kill()

    holds = name == "redis-cli" and user is None and os.geteuid() == 0
    assert found["found"] == ([] if holds else [f"environment of {name}: mine"])


def test_a_holders_unit_may_have_a_secret_as_its_own_account(open_to_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that a holder's unit starts is not found, whatever it is called; that of another unit is."""
    real = secret_search.contents
    unit = {"redis-backup.service": [], "another.service": ["environment of sleep: mine"]}
    for name, expected in unit.items():
        stop = open_to_all / name
        found: dict[str, Any] = {}
        with subprocess.Popen(["/bin/sleep", "60"], env={"SECRET": VALUE}) as process:
            cgroup = {f"/proc/{process.pid}/cgroup": f"0::/system.slice/{name}\n".encode()}
            monkeypatch.setattr(secret_search, "contents", lambda path, cgroup=cgroup: cgroup.get(path) or real(path))
            watcher = threading.Thread(
                target=lambda stop=stop, found=found: found.update(watch({"mine": VALUE.encode()}, str(stop), ["redis-backup.service"]))
            )
            watcher.start()
            threading.Event().wait(1.0)
            stop.touch()
            watcher.join(60)
            process.kill()
        assert found["found"] == expected, name
