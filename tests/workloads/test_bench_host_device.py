"""How the GPUs of a host take turns with their copies."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from workloads.bench.host_device import turn

if TYPE_CHECKING:
    from pathlib import Path

LONG_S, SHORT_S = 30.0, 0.5


def test_one_copies_at_a_time_and_the_next_follows(tmp_path: Path) -> None:
    """The second begins when the first has ended, however it ended."""
    begun = threading.Event()

    def other() -> None:
        with turn(str(tmp_path)):
            begun.set()

    def ends_ill() -> None:
        with turn(str(tmp_path)):
            threading.Thread(target=other, daemon=True).start()
            assert not begun.wait(SHORT_S)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        ends_ill()
    assert begun.wait(LONG_S)
