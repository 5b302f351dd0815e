"""Leader election: one watcher leads a job, even if file locks are local to a host, or a host was disconnected for a while.

state.json names the watcher. A watcher that finds another name there stops writing. A watcher that starts first waits to see whether the
other one, on another host, still writes. Only times of this host's clock are compared.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import LockedError
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch.attempt import read_boot_id

if TYPE_CHECKING:
    import threading

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_state import State

LISTEN_S = 30.0  # a running watcher writes more often: loop.STALE_S


def _host() -> str:
    return f"{socket.gethostname()}/{read_boot_id()}"


@dataclass(frozen=True)
class Leader:
    """This watcher's claim to one job. `name` is unique: host, boot and a random number."""

    folder: JobFolder
    host: str = field(default_factory=_host)
    number: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def name(self) -> str:
        """The name in state.json."""
        return f"{self.host}/{self.number}"

    def wait(self, state: State | None, stop: threading.Event, *, listen_s: float = LISTEN_S) -> None:
        """Wait while a watcher on another host may still run; on this host the lock file has excluded that.

        Raises:
            LockedError: It runs: it has written the state meanwhile.
        """
        if state is None or not state.watcher or state.watcher.rpartition("/")[0] == self.host or state.phase in states.TERMINAL:
            return
        stop.wait(listen_s)
        now = self.folder.state()
        if now is not None and now.updated != state.updated:
            raise self._locked(now)

    def check(self) -> None:
        """Check that this watcher still leads.

        Raises:
            LockedError: Another watcher leads the job.
        """
        now = self.folder.state()
        if now is not None and now.watcher != self.name:
            raise self._locked(now)

    def _locked(self, state: State) -> LockedError:
        host = state.watcher.partition("/")[0]
        return LockedError(
            f"{self.folder.path}: the watcher on {host or 'another host'} leads this job", fix="stop it; systemd restarts this one"
        )
