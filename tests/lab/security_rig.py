"""Two users of the shared cluster, ada and bob, for tests in which one attacks the other or root."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import run_cli, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

HOSTS = ("node1", "node2", "node3")
SERVICE, COMPUTE = "node1", ("node2", "node3")
JOBS = "/jfs/primus/jobs"
BROKER = "/run/primus-watch/broker.sock"
ENDED = ("done", "failed", "cancelled")
_BOB = """      - name: bob
        uid: 4102
        comment: Bob, training
        authorized_keys_file: {key}.pub
"""
# What a watcher sends, from any program of any account.
_ASK = """
import json, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
    connection.settimeout(60)
    connection.connect(sys.argv[1])
    connection.sendall(sys.argv[2].encode() + b"\\n")
    connection.shutdown(socket.SHUT_WR)
    print(connection.makefile().read())
"""


@dataclass(frozen=True)
class People:
    """The accounts of a cluster, and the administrator's actions for them."""

    lab: RunningLab

    def run(self, account: str, node: str, command: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command as a user, with the account's key."""
        return self.lab.ssh(node, command, timeout_s=timeout_s, account=account, key=f"{account}_ed25519")

    def refused(self, account: str, node: str, *commands: str) -> None:
        """Check that each command fails, and that the login does not."""
        script = "\n".join(f"if ({command}) > /dev/null 2>&1; then echo {shlex.quote(command)}; fi" for command in commands)
        done = self.run(account, node, f"{script}\necho end", timeout_s=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["end"], f"{account} could: {done.stdout}"

    def allowed(self, account: str, node: str, command: str, *, timeout_s: float = 60) -> str:
        """Check that a command succeeds, and return its output."""
        done = self.run(account, node, command, timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def cli(self, verb: str, *words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a verb of `workload` as the administrator."""
        return run_cli("workload", verb, str(self.lab.hosts_file), *words, timeout_s=timeout_s)

    def submit(self, account: str, script: str, *values: str) -> str:
        """Submit a job of an account with its own script on one host; return the job's ID."""
        path = f"/jfs/home/{account}/job-{time.monotonic_ns()}.sh"
        self.allowed(account, SERVICE, f"printf '%s\\n' '#!/bin/sh' {shlex.quote(script)} > {path} && chmod 700 {path}")
        given = [
            f"workload_user={account}",
            "workload_target=direct",
            "workload_nodes=1",
            "workload_gpus_per_node=0",
            "workload_progress_timeout_s=0",
            "workload_first_step_timeout_s=0",
            f"workload_cli_options=[--single, --script={path}]",
            *values,
        ]
        done = self.cli("submit", "debug-dense", *(word for value in given for word in ("-e", value)), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return str(found["id"])

    def state(self, job: str) -> dict[str, Any]:
        """Return a job's state from its watcher; empty before there is one."""
        done = self.lab.execute(SERVICE, "primus-cli", "watch", "show", "--folder", f"{JOBS}/{job}", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found["state"] or {}

    def finish(self, job: str, *, timeout_s: float = 300) -> str:
        """Wait for a job's end, and return its phase."""
        assert wait_for(lambda: self.state(job).get("phase") in ENDED, timeout_s=timeout_s, every_s=1), self.state(job)
        return str(self.state(job)["phase"])

    def ask_broker(self, account: str, node: str, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request for a node to the broker of the service host as an account, and return its answer."""
        line = json.dumps({"schema": "primus.broker/1", "what": "node", "node": node, "request": request, "timeout_s": 20})
        words = f"python3 -I -c {shlex.quote(_ASK)} {BROKER} {shlex.quote(line)}"
        found: dict[str, Any] = json.loads(self.allowed(account, SERVICE, words, timeout_s=90))
        return found

    def ask_helper(self, node: str, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to root's helper on a node with the broker's key, and return its answer."""
        line = json.dumps({"schema": "primus.unit/1", **request})
        done = self.lab.execute(node, "sh", "-c", f"printf '%s\\n' {shlex.quote(line)} | primus-cli unit", timeout_s=90)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def is_logged(self, node: str, words: str, since: float, *, identifier: str = "") -> bool:
        """Return whether a node's journal has a line with these words since then, within some seconds."""
        argv = ["journalctl", "--quiet", "--output=cat", f"--since=@{int(since)}", *([f"--identifier={identifier}"] if identifier else [])]
        return wait_for(lambda: words in self.lab.execute(node, *argv).stdout, timeout_s=15, every_s=1)


@pytest.fixture(scope="session")
def people(applied_cluster: RunningLab) -> Iterator[People]:
    """Add the account bob to the cluster, once per session; ada and bob then have job folders."""
    key = applied_cluster.state_dir / "ssh" / "bob_ed25519"
    text = applied_cluster.hosts_file.read_text()
    if "name: bob" not in text:
        if not key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bob", "-f", str(key)], timeout=60, check=True)
        shown = key.relative_to(applied_cluster.folder)
        text = text.replace("    users_groups_accounts:\n", f"    users_groups_accounts:\n{_BOB.format(key=shown)}", 1)
        text = text.replace(
            "      - {name: ada, accounts: [training]}\n",
            "      - {name: ada, accounts: [training]}\n      - {name: bob, accounts: [training]}\n",
        )
        applied_cluster.hosts_file.write_text(text)
        phases = [word for phase in ("baseline", "monitoring", "storage", "slurm", "scheduling") for word in ("--phase", phase)]
        done = applied_cluster.apply(*phases)
        assert done.returncode == 0, done.stdout + done.stderr
    yield People(applied_cluster)
    for job in json.loads(People(applied_cluster).cli("list", "--json").stdout)["jobs"]:
        People(applied_cluster).cli("cancel", job["id"])


def slept(marker: str) -> str:
    """Return a command whose process has a unique number as an argument."""
    return f"sleep {marker}"


def pids(lab: RunningLab, node: str, command: str) -> list[str]:
    """Return the processes of a node with exactly this command line."""
    return lab.execute(node, "pgrep", "-fx", command).stdout.split()
