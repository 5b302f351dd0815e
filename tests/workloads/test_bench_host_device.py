"""workloads.bench.host_device: only one process of a host copies at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from workloads.bench.host_device import turn

if TYPE_CHECKING:
    from pathlib import Path

LONG_S, SHORT_S = 30.0, 0.5


def test_the_second_copy_starts_after_the_first(tmp_path: Path) -> None:
    """Also if the first fails."""
    begun = threading.Event()

    def other() -> None:
        with turn(str(tmp_path)):
            begun.set()

    def fails() -> None:
        with turn(str(tmp_path)):
            threading.Thread(target=other, daemon=True).start()
            assert not begun.wait(SHORT_S)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fails()
    assert begun.wait(LONG_S)
