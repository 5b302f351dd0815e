"""How long a test waits for what must come: one limit for all of them.

It is far above what anything takes, since other work may keep a disk from answering for a minute. A test that passes never waits it
out. Where the time is what is promised, a test gives its own limit.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 180.0

_T = TypeVar("_T")


def until(comes: Callable[[], _T], what: object = "it", limit_s: float = LIMIT_S, every_s: float = 0.05) -> _T:
    """Wait until something answers with what counts as true, and return that; the test fails where it never does.

    Args:
        comes: The question; an answer that is false or empty is asked for again.
        what: What is waited for, to name where it does not come; called for the words where it can be.
        limit_s: The longest wait in seconds.
        every_s: The pause between two questions in seconds.
    """
    deadline = time.monotonic() + limit_s
    while not (answer := comes()):
        assert time.monotonic() < deadline, f"not after {limit_s:g} s: {what() if callable(what) else what}"
        time.sleep(every_s)
    return answer


def listens(address: str, port: int) -> bool:
    """Return whether a connection to a port is taken."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
