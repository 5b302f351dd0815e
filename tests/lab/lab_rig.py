"""Run primus-bootstrap on a lab like a user, inject faults, and inspect hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]


def engine_argv() -> list[str]:
    """Return the command of the container engine."""
    return [*([] if os.geteuid() == 0 else ["sudo", "-n"]), "podman" if shutil.which("podman") else "docker"]


def run_cli(
    *arguments: str, timeout_s: float = 600, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `primus-bootstrap` in a separate process, without checking its exit code."""
    argv = [sys.executable, "-m", "primus_bootstrap", *arguments]
    return subprocess.run(
        argv, cwd=cwd or ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def wait_for(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.1) -> bool:
    """Wait until a condition is true; return False after the time limit."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(every_s)
    return condition()


@dataclass(frozen=True)
class RunningLab:
    """A running lab of the test session; `folder` contains its hosts.yaml and its state."""

    name: str
    folder: Path

    @property
    def hosts_file(self) -> Path:
        """The inventory for primus-bootstrap."""
        return self.folder / "hosts.yaml"

    @property
    def state_dir(self) -> Path:
        """The folder of the cluster's runs, lock and known_hosts."""
        return self.folder / ".primus" / self.name

    def lab(self, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a verb of `primus-bootstrap lab`, which must succeed."""
        done = run_cli("lab", *arguments, "--name", self.name, "--dir", str(self.folder), timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def fault(self, kind: str, node: str) -> None:
        """Kill, start, pause, partition or heal a node."""
        self.lab("fault", kind, node)

    def heal(self) -> None:
        """Repair every node."""
        self.lab("up")

    def renew(self) -> None:
        """Recreate every node; keys, pinned host keys and hosts.yaml stay."""
        self.lab("down")
        self.lab("up")

    def apply(self, *arguments: str, timeout_s: float = 3000) -> subprocess.CompletedProcess[str]:
        """Apply the lab's hosts.yaml without confirmation."""
        return run_cli("apply", str(self.hosts_file), "--yes", *arguments, timeout_s=timeout_s)

    def verify(self, *arguments: str) -> dict[str, Any]:
        """Run `verify --json` and return its output for any verdict."""
        done = run_cli("verify", str(self.hosts_file), "--json", *arguments, timeout_s=900)
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode
        return found

    def last_report(self) -> dict[str, Any]:
        """Return the report of the newest run."""
        newest = max((self.state_dir / "runs").iterdir())
        found: dict[str, Any] = json.loads((newest / "report.json").read_text())
        return found

    def container(self, node: str) -> str:
        """Return the name of a node's container."""
        return f"primus-{self.name}-{node}"

    def execute(self, node: str, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command as root in a node without SSH, without checking its exit code."""
        return subprocess.run(
            [*engine_argv(), "exec", self.container(node), *argv], capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def sh(self, node: str, script: str, *, timeout_s: float = 60) -> str:
        """Run a shell script as root in a node, which must succeed, and return its output."""
        done = self.execute(node, "sh", "-ec", script, timeout_s=timeout_s)
        assert done.returncode == 0, f"{node}: {script}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    @contextlib.contextmanager
    def cut_off(self, node: str, port: int) -> Iterator[None]:
        """Drop all packets of other hosts to a port of a node during the block."""
        iptables = [*self._in_network_of(node), "iptables"]
        rule = ["INPUT", "-i", "eth0", "-p", "tcp", "--dport", str(port), "-j", "DROP"]
        subprocess.run([*iptables, "-I", *rule], capture_output=True, timeout=60, check=True)
        try:
            yield
        finally:
            subprocess.run([*iptables, "-D", *rule], capture_output=True, timeout=60, check=True)

    @contextlib.contextmanager
    def slowed(self, node: str, mbit_per_s: int) -> Iterator[None]:
        """Limit a node's network bandwidth during the block."""
        tc = [*self._in_network_of(node), "tc", "qdisc"]
        rate = ["rate", f"{mbit_per_s}mbit", "burst", "32kbit", "latency", "400ms"]
        subprocess.run([*tc, "add", "dev", "eth0", "root", "tbf", *rate], capture_output=True, timeout=60, check=True)
        try:
            yield
        finally:
            subprocess.run([*tc, "del", "dev", "eth0", "root"], capture_output=True, timeout=60, check=True)

    def _in_network_of(self, node: str) -> list[str]:
        """Return the command prefix that runs a program of this machine in a node's network."""
        inspected = [*engine_argv(), "inspect", "--format", "{{.State.Pid}}", self.container(node)]
        pid = subprocess.run(inspected, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
        return [*engine_argv()[:-1], "nsenter", "-t", pid, "-n"]

    def person(self, node: str, command: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command in a node as the user of hosts.yaml, with the key from `lab up`."""
        return self.ssh(node, command, timeout_s=timeout_s, account="ada", key="ada_ed25519")

    def ssh(
        self, node: str, command: str, *, timeout_s: float = 60, account: str = "primus", key: str = "id_ed25519"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a node with OpenSSH, by default as the administrator, with pinned host keys."""
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes", f'UserKnownHostsFile="{self.state_dir}/known_hosts"']
        argv = ["ssh", "-F", "none", "-i", str(self.state_dir / "ssh" / key)]
        argv += [word for option in options for word in ("-o", option)]
        return subprocess.run(
            [*argv, f"{account}@{self.address(node)}", command], capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def address(self, node: str) -> str:
        """Return a node's address in hosts.yaml."""
        found = re.search(rf"^    {node}: *{{ansible_host: ([0-9.]+)}}", self.hosts_file.read_text(), re.MULTILINE)
        assert found, f"{node} is not in {self.hosts_file}"
        return found[1]
