"""Targets start, observe and stop attempts. They report an unknown state as unknown, and decide nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.observation import Candidates, Observation


class Target(Protocol):
    """Every call has a time limit, and may be repeated."""

    def candidates(self) -> Candidates:
        """Return the hosts that may run the next attempt, with their current state."""
        ...

    def start(self, state: State) -> None:
        """Start the state's attempt on the hosts where it has not started."""
        ...

    def observe(self, state: State) -> Observation:
        """Return the state's attempt as it is now, without progress and requests."""
        ...

    def stop(self, state: State, *, force: bool) -> None:
        """Stop the attempt gracefully; with `force` kill it."""
        ...
