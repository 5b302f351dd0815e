"""What tests do to a lab: run primus-bootstrap as a user does, break hosts, look inside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def engine_argv() -> list[str]:
    """Return how to call the container engine that holds the lab."""
    return [*([] if os.geteuid() == 0 else ["sudo", "-n"]), "podman" if shutil.which("podman") else "docker"]


def run_cli(
    *arguments: str, timeout_s: float = 600, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `primus-bootstrap` as a user does, in a process of its own; the exit status is for the test to judge."""
    argv = [sys.executable, "-m", "primus_bootstrap", *arguments]
    return subprocess.run(
        argv, cwd=cwd or ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@dataclass(frozen=True)
class RunningLab:
    """A lab that is up; `folder` holds its hosts.yaml and its state and belongs to the test session."""

    name: str
    folder: Path

    @property
    def hosts_file(self) -> Path:
        """The inventory to hand to primus-bootstrap."""
        return self.folder / "hosts.yaml"

    @property
    def state_dir(self) -> Path:
        """The cluster's runs, lock and known_hosts."""
        return self.folder / ".primus" / self.name

    def lab(self, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a verb of `primus-bootstrap lab` on this lab and demand that it succeeds."""
        done = run_cli("lab", *arguments, "--name", self.name, "--dir", str(self.folder), timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def fault(self, kind: str, node: str) -> None:
        """Kill, start, pause, partition or heal a node."""
        self.lab("fault", kind, node)

    def heal(self) -> None:
        """Bring every node back, whatever was done to it."""
        self.lab("up")

    def renew(self) -> None:
        """Replace every node by a fresh one; keys, pins and hosts.yaml stay."""
        self.lab("down")
        self.lab("up")

    def container(self, node: str) -> str:
        """Return the name of a node's container."""
        return f"primus-{self.name}-{node}"

    def execute(self, node: str, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command as root in a node, not through SSH; the exit status is for the test to judge."""
        return subprocess.run(
            [*engine_argv(), "exec", self.container(node), *argv], capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def ssh(self, node: str, command: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command in a node as the lab's user through OpenSSH, with host keys checked strictly."""
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes", f'UserKnownHostsFile="{self.state_dir}/known_hosts"']
        argv = ["ssh", "-F", "none", "-i", str(self.state_dir / "ssh/id_ed25519")]
        argv += [word for option in options for word in ("-o", option)]
        return subprocess.run(
            [*argv, f"primus@{self.address(node)}", command], capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def address(self, node: str) -> str:
        """Return a node's address as hosts.yaml says it."""
        found = re.search(rf"^    {node}: *{{ansible_host: ([0-9.]+)}}", self.hosts_file.read_text(), re.MULTILINE)
        assert found, f"{node} is not in {self.hosts_file}"
        return found[1]
