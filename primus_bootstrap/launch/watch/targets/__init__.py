"""Where attempts run. A target starts, looks at and stops one attempt; what it cannot find out it says so, and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.observation import Candidates, Observation


class Target(Protocol):
    """Every call ends within its own time-outs, and may be repeated."""

    def candidates(self) -> Candidates:
        """Return the hosts that may take part, as they are now."""
        ...

    def start(self, state: State) -> None:
        """Start the state's attempt where it has not been started."""
        ...

    def observe(self, state: State) -> Observation:
        """Return how the state's attempt stands, without progress and requests."""
        ...

    def stop(self, state: State, *, force: bool) -> None:
        """Ask the attempt to end; with `force` end it at once."""
        ...
