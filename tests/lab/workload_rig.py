"""Submit training jobs on a lab, read their state on the service host, and compare their losses."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.lab.lab_rig import run_cli, wait_for

if TYPE_CHECKING:
    import subprocess

    from tests.lab.lab_rig import RunningLab

SERVICE = "node1"
JOBS = "/jfs/primus/jobs"
ENDED = ("done", "failed", "cancelled")
# The sum of two numbers does not depend on their order, so losses are the same to the bit. From three ranks on, the first step after a
# start adds in another order (DDP has not yet seen in which order gradients come), and losses differ in their last digit.
# As short as the trainer's own step allows, so that a test of a hang does not take a quarter of an hour.
HANGS = "workload_progress_timeout_s=60"
HANG_DRILL = "drill: {kind: hang, step: 12, rank: 1}, watchdog: {step_timeout_s: 30}"
_TWO_RANKS = "workload_processes_per_node=1"
_UNHURRIED = "drill: {kind: slow, step: 1, rank: 0, slow_s: 0.5}"
_WATCH = ("/usr/bin/python3", "-I", "/usr/local/bin/primus-cli", "watch")


@dataclass(frozen=True)
class Training:
    """Jobs on one lab. All times are this machine's clock."""

    lab: RunningLab

    def submit(self, target: str, *values: str, settings: str = "") -> str:
        """Submit the shipped job for local hosts with some of its variables changed, and return its id.

        `settings` are further settings of the trainer, as YAML between braces would have them; without any, a step takes long enough
        that a test can break something between two.
        """
        base = "train: {steps: 60}, checkpoint: {every_steps: 5, keep: 3}"
        given = [f"workload_target={target}", _TWO_RANKS, f"workload_settings={{{base}, {settings or _UNHURRIED}}}", *values]
        done = self.cli("submit", "debug-dense", *(word for value in given for word in ("-e", value)), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return str(found["id"])

    def submit_beside(self, target: str, nodes: int, held: str) -> tuple[dict[str, Any], str]:
        """Submit a short job while a host is in quarantine; return the verb's JSON output and its messages."""
        record = {"schema": "primus.quarantine/1", "host": held, "owner": "ada", "reason": "a fan is broken", "time": time.time()}
        path = "/var/lib/primus/quarantine.json"
        self.lab.sh(held, f"mkdir -p /var/lib/primus && printf %s {shlex.quote(json.dumps(record))} > {path}")
        settings = "workload_settings={train: {steps: 10, global_batch: 12}}"  # for two ranks as well as for three
        given = [f"workload_target={target}", _TWO_RANKS, settings, f"workload_nodes={nodes}"]
        done = self.cli("submit", "debug-dense", *(word for value in given for word in ("-e", value)), "--json")
        self.lab.sh(held, f"rm {path}")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout), done.stderr

    def cli(self, verb: str, *words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a verb of `workload` with the lab's hosts.yaml."""
        return run_cli("workload", verb, str(self.lab.hosts_file), *words, timeout_s=timeout_s)

    def show(self, job: str) -> dict[str, Any]:
        """Return a job's state from the service host; empty before there is one."""
        done = self.lab.execute(SERVICE, *_WATCH, "show", "--folder", f"{JOBS}/{job}", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found["state"] or {}

    def lines(self, job: str, name: str) -> list[dict[str, Any]]:
        """Return the entries of a JSON lines file in the job's folder."""
        done = self.lab.execute(SERVICE, "cat", f"{JOBS}/{job}/{name}")
        found = []
        for line in done.stdout.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # a line that a kill has torn
        return found

    def events(self, job: str, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of these kinds in order."""
        return [event for event in self.lines(job, "events.jsonl") if event["kind"] in kinds]

    def losses(self, job: str) -> dict[int, float]:
        """Return the loss of every step, the last one for repeated steps."""
        return {line["step"]: line["loss"] for line in self.lines(job, "run/steps.jsonl") if "loss" in line}

    def wait_for_step(self, job: str, step: int, *, timeout_s: float = 300) -> None:
        """Wait until a step is complete."""
        assert wait_for(lambda: max(self.losses(job), default=0) >= step, timeout_s=timeout_s, every_s=0.5), self.show(job)

    def wait_for_phase(self, job: str, *phases: str, timeout_s: float = 900) -> dict[str, Any]:
        """Wait until the job is in one of these phases, and return its state."""
        assert wait_for(lambda: self.show(job).get("phase") in phases, timeout_s=timeout_s, every_s=1), self.show(job)
        return self.show(job)

    def resume(self, job: str) -> None:
        """Resume a job, and wait until its watcher has started."""
        assert self.cli("resume", job).returncode == 0
        assert wait_for(lambda: self.show(job).get("phase") not in ENDED, timeout_s=60, every_s=0.5), self.show(job)

    def finish(self, job: str, *, timeout_s: float = 900) -> dict[str, Any]:
        """Wait for a job's end and check that it is done."""
        state = self.wait_for_phase(job, *ENDED, timeout_s=timeout_s)
        assert state["phase"] == "done", state
        return state

    def hosts(self, job: str) -> list[str]:
        """Return the hosts of the running attempt."""
        return [host["name"] for host in self.show(job)["hosts"]]

    def suspects(self, job: str, attempt: int) -> list[int]:
        """Return the ranks that the diagnosis of an attempt names."""
        found = json.loads(self.lab.sh(SERVICE, f"cat {JOBS}/{job}/attempts/{attempt}/diagnosis.json"))
        return [one["rank"] for one in found["suspects"]]

    def recovery(self, job: str, killed_at: float) -> tuple[float, float]:
        """Return the times from a kill to its detection and to the next step, in seconds."""
        noticed = [event["time"] for event in self.events(job, "node_lost", "attempt_ended") if event["time"] > killed_at]
        stepped = [event["time"] for event in self.events(job, "first_step") if event["time"] > killed_at]
        assert noticed, self.events(job)
        assert stepped, self.events(job)
        return min(noticed) - killed_at, min(stepped) - killed_at

    def cut_power(self, node: str) -> float:
        """Kill every process of a host, and return the time."""
        killed_at = time.time()
        self.lab.fault("kill", node)
        return killed_at

    def wait_for_progress(self, job: str, attempt: int) -> None:
        """Wait until an attempt has completed a step, so that its loss does not use the retry budget."""

        def moved() -> bool:
            state = self.show(job)
            return state["attempt"] == attempt and state["attempts"][-1]["first_step"] is not None

        assert wait_for(moved, timeout_s=300, every_s=0.5), self.show(job)

    def kill_ranks(self, node: str, *, signal: str = "KILL") -> None:
        """Send a signal to the trainer's processes on a host."""
        done = self.lab.execute(node, "pkill", f"-{signal}", "-u", "ada", "-f", "workloads/train/pretrain.py")
        assert done.returncode == 0, f"no rank on {node}: {self.lab.execute(node, 'ps', '-fu', 'ada').stdout}{self.cli('list').stdout}"

    def cancel_all(self) -> None:
        """Cancel every job and wait for its end."""
        found = json.loads(self.cli("list", "--json").stdout)["jobs"]
        for job in found:
            self.cli("cancel", job["id"])
        for job in found:
            wait_for(lambda job=job: self.show(job["id"]).get("phase") in ENDED, timeout_s=180, every_s=1)  # type: ignore[misc]
