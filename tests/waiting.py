"""Waiting for a condition, with one time limit for all tests.

The limit is far above normal durations, because another process can block a disk for a minute. A test that checks a duration
passes its own limit.
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


def until(condition: Callable[[], _T], what: object = "it", limit_s: float = LIMIT_S, every_s: float = 0.05) -> _T:
    """Call `condition` until it returns a true value, and return that value; fail after the limit.

    Args:
        condition: Called until its result is true.
        what: Description for the failure message, or a function that returns it.
        limit_s: Time limit in seconds.
        every_s: Pause between two calls in seconds.
    """
    deadline = time.monotonic() + limit_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not after {limit_s:g} s: {what() if callable(what) else what}"
        time.sleep(every_s)
    return answer


def listens(address: str, port: int) -> bool:
    """Return whether a port accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
