"""Start a private sshd on loopback for tests, with its own keys."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.fleet.fanout import run_on_all
from primus_bootstrap.fleet.messages import Answer, Target, Task
from tests.integration.sshd_rig import start_sshd
from tests.unit.engine_rig import free_port
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

needs_sshd = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/sbin/sshd").exists(), reason="needs root and /usr/sbin/sshd (Debian: openssh-server)"
)


@dataclass
class LoopbackSshd:
    """An sshd on all loopback addresses at one port, whose sessions read no shell profile."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start sshd and wait until it listens."""
        self.port = self.port or free_port()
        # SHLVL keeps bash from reading ~/.bashrc, which on some machines costs more than the whole test.
        settings = ("ListenAddress 0.0.0.0", "MaxStartups 2000", "SetEnv SHLVL=2", "AllowTcpForwarding yes")
        self.process = start_sshd(self.folder, self.port, *settings)

    def stop(self) -> None:
        """Stop sshd."""
        if self.process:
            self.process.terminate()
            self.process.wait(LIMIT_S)

    @property
    def public_key(self) -> str:
        """The host key without its comment."""
        return " ".join((self.folder / "host_key.pub").read_text(encoding="utf-8").split()[:2])

    @property
    def key_file(self) -> str:
        """The private key for logins."""
        return str(self.folder / "user_key")

    def known_hosts(self, *addresses: str) -> str:
        """Pin the host key for addresses (default 127.0.0.1), and return the file."""
        path = self.folder / "known_hosts"
        names = addresses or ("127.0.0.1",)
        path.write_text("".join(f"[{address}]:{self.port} {self.public_key}\n" for address in names), encoding="utf-8")
        return str(path)

    def target(self, host: str = "host1", address: str = "127.0.0.1") -> Target:
        """Return a target for this sshd."""
        return Target(host, address, self.port, getpass.getuser(), self.key_file)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSshd]:
    """A running sshd for the tests of a module."""
    server = LoopbackSshd(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port whose server accepts connections and sends nothing."""
    with socket.create_server(("0.0.0.0", 0), backlog=64) as listener:  # noqa: S104 (loopback addresses only are used)
        kept: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        for one in kept:
            one.close()


def run_command_on(
    targets: Sequence[Target], command: str, known_hosts: str, *, timeout_s: float = 30.0, stdin: str = ""
) -> dict[str, Answer]:
    """Run a command on hosts and return the answers by host."""
    task = Task(command, {target.host: stdin for target in targets}, timeout_s, known_hosts)
    return {answer.host: answer for answer in run_on_all(targets, task)}
