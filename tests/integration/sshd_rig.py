"""An sshd of a test on a loopback port, with its own keys."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT_S, listens, until


@dataclass
class PrivateSshd:
    """An sshd on a loopback port with its own host key and one authorized key."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it listens; create a host key if there is none."""
        self.process = start_sshd(self.folder, self.port, "ListenAddress 127.0.0.1")

    def stop(self) -> None:
        """Stop the server."""
        if self.process:
            self.process.terminate()
            self.process.wait(LIMIT_S)

    def change_host_key(self) -> None:
        """Restart the server with a new host key, like another machine at the same address."""
        self.stop()
        for name in ("host_key", "host_key.pub"):
            (self.folder / name).unlink()
        self.start()

    @property
    def public_key(self) -> str:
        """The host key in the form of `host_key` in hosts.yaml."""
        return " ".join((self.folder / "host_key.pub").read_text(encoding="utf-8").split()[:2])

    def variables(self) -> dict[str, Any]:
        """Return the connection variables of a host with this sshd."""
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.folder / "user_key"),
            "ansible_python_interpreter": sys.executable,
        }


def start_sshd(folder: Path, port: int, *settings: str) -> subprocess.Popen[bytes]:
    """Start an sshd with the keys of a folder and additional lines of sshd_config; create missing keys, and wait until it listens."""
    for name in ("host_key", "user_key"):
        if not (folder / name).exists():
            make_key(folder / name)
    base = [f"Port {port}", f"HostKey {folder}/host_key", f"AuthorizedKeysFile {folder}/user_key.pub", "StrictModes no", "UsePAM no"]
    config = folder / "sshd_config"
    config.write_text("\n".join([*base, "PidFile none", "PermitRootLogin yes", *settings, ""]), encoding="utf-8")
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
    until(lambda: listens("127.0.0.1", port), "sshd")
    return process


def make_key(path: Path, passphrase: str = "") -> None:
    """Create an Ed25519 key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True, timeout=LIMIT_S)


def has_sshd() -> bool:
    """Return whether this machine can run an sshd for a test."""
    return Path("/usr/sbin/sshd").exists() and os.geteuid() == 0
