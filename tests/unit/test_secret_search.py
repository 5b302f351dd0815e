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
