"""Which watcher leads a job: one, also where service hosts lock files each for itself, or where one was away and comes back.

state.json names its watcher. One that finds another's name there writes no more; one that begins waits whether the other, on another host,
still writes. Times that are compared are of one clock: this host's.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch.attempt import read_boot_id

if TYPE_CHECKING:
    import threading

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_state import State

LISTEN_S = 30.0  # a watcher that lives writes more often: loop.STALE_S


class LockedError(PrimusError):
    """Another watcher has the job."""

    exit_code = 5


def _host() -> str:
    return f"{socket.gethostname()}/{read_boot_id()}"


@dataclass(frozen=True)
class Leader:
    """This watcher's claim to one job; `name` tells it from all others: host, boot, and a number of its own."""

    folder: JobFolder
    host: str = field(default_factory=_host)
    number: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def name(self) -> str:
        """What state.json calls it."""
        return f"{self.host}/{self.number}"

    def wait(self, state: State | None, stop: threading.Event, *, listen_s: float = LISTEN_S) -> None:
        """Wait as long as the watcher of another host may be alive; on this host the lock of the job has told already.

        Raises:
            LockedError: It is: it wrote meanwhile.
        """
        if state is None or not state.watcher or state.watcher.rpartition("/")[0] == self.host or state.phase in states.TERMINAL:
            return
        stop.wait(listen_s)
        now = self.folder.state()
        if now is not None and now.updated != state.updated:
            raise self._locked(now)

    def check(self) -> None:
        """Make sure that this watcher still leads.

        Raises:
            LockedError: Another one has taken the job.
        """
        now = self.folder.state()
        if now is not None and now.watcher != self.name:
            raise self._locked(now)

    def _locked(self, state: State) -> LockedError:
        host = state.watcher.partition("/")[0]
        return LockedError(
            f"{self.folder.path}: the watcher on {host or 'another host'} has this job", fix="stop it; this one is tried again by systemd"
        )
