"""Run training jobs on real nodes of a kubeadm cluster, submitted with hosts.yaml.

The control plane is the service host and the spare. Shared storage is a folder of this machine that all nodes mount.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from tests.integration.sshd_rig import make_key
from tests.kubernetes.kubeadm_cluster import STORAGE, VENV, wait_for
from tests.kubernetes.node_image import PYTHON_IMAGE
from tests.lab.lab_rig import run_cli

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.kubernetes.kubeadm_cluster import Cluster

JOBS = f"{STORAGE}/primus/jobs"
NAMESPACE = "primus-jobs"
ENDED = ("done", "failed", "cancelled")
_USER, _UID = "ada", 4101
_ACCESS = content.roles_dir() / "primus_watch/files/kubernetes.yml"
_MAKE_VENV = f"""
mkdir -p {VENV}/bin {JOBS}
ln -sfn /usr/bin/python3 {VENV}/bin/python
ln -sfn /usr/bin/python3 {VENV}/bin/python3
printf 'home = /usr/bin\\ninclude-system-site-packages = false\\n' > {VENV}/pyvenv.cfg
id {_USER} > /dev/null 2>&1 || useradd --uid {_UID} --create-home {_USER}
"""
# A step takes long enough that a test can break something between two.
STEPS, UNENDING = 40, 20000
_SETTINGS = "checkpoint: {every_steps: 5, keep: 3}, drill: {kind: slow, step: 1, rank: 0, slow_s: 0.5}"


@dataclass(frozen=True)
class Nodes:
    """A cluster that accepts jobs. All times are this machine's clock."""

    cluster: Cluster
    folder: Path

    @property
    def hosts_file(self) -> Path:
        """The inventory for primus-bootstrap."""
        return self.folder / "hosts.yaml"

    @property
    def service(self) -> str:
        """The service host."""
        return self.cluster.nodes[0]

    def reach(self) -> None:
        """Configure SSH access for Ansible and write hosts.yaml; safe to repeat."""
        self.folder.mkdir(exist_ok=True)
        key = self.folder / "key"
        if not key.exists():
            make_key(key)
        for node in self.cluster.nodes:
            self.cluster.write_on(node, "/root/.ssh/authorized_keys", key.with_suffix(".pub").read_text())
        self._write_hosts()

    def prepare(self) -> None:
        """Install what a job needs with the phases of site.yml; safe to repeat."""
        self.reach()
        self.cluster.run_on(self.service, "sh", "-euc", _MAKE_VENV)
        # Two workers and nothing else would leave no place for a job that lost one.
        self.cluster.kubectl("taint", "node", self.service, "node-role.kubernetes.io/master-", check=False)
        for node in self.cluster.nodes:
            self.cluster.run_on(node, "ctr", "--namespace=k8s.io", "images", "import", "/opt/images/python.tar", limit_s=300)
        self._write_kubeconfig()
        done = run_cli("apply", str(self.hosts_file), "--yes", "--phase=gpu", "--phase=scheduling", timeout_s=600)
        assert done.returncode == 0, done.stdout + done.stderr

    def _write_kubeconfig(self) -> None:
        """Write the watcher's kubeconfig with the shipped rights."""
        self.cluster.kubectl("apply", "--filename=-", stdin=_ACCESS.read_text())
        template = "go-template={{.data.token | base64decode}}"
        ask = ("--namespace", NAMESPACE, "get", "secret", "primus-watch-token", f"--output={template}")
        wait_for(lambda: self.cluster.kubectl(*ask).startswith("ey"), "the watcher's account has no token")
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": self.cluster.kubectl(*ask)}}]
        path = self.folder / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))

    def _write_hosts(self) -> None:
        nodes = self.cluster.nodes
        values = {
            "cluster_name": "nodes",
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "workload_user": _USER,
            "primus_watch_accounts": [_USER],
            "workload_venv": VENV,
            "kube_certificates_program_dir": "/usr/bin",
            "primus_watch_kubeconfig_file": str(self.folder / "kubeconfig"),
        }
        first: dict[str, Any] = {"hosts": {nodes[0]: {}}}
        groups = dict.fromkeys(("kube_control_plane", "etcd", "primus_watch", "spare"), first)
        groups["kube_node"] = {"hosts": {node: {} for node in nodes}}
        hosts = {node: {"ansible_host": str(self.cluster.address(node))} for node in nodes}
        # JSON is YAML, and shares no anchors between groups.
        self.hosts_file.write_text(json.dumps({"all": {"vars": values, "hosts": hosts, "children": groups}}, indent=1))

    def cli(self, verb: str, *words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a verb of `workload` on this cluster."""
        return run_cli("workload", verb, str(self.hosts_file), *words, timeout_s=timeout_s)

    def submit(self, steps: int = STEPS) -> str:
        """Submit the shipped job for local hosts with one rank per node, and return its ID."""
        given = [
            "workload_target=kubernetes",
            f"workload_kubernetes_image={PYTHON_IMAGE}",
            "workload_processes_per_node=1",
            f"workload_settings={{train: {{steps: {steps}}}, {_SETTINGS}}}",
        ]
        done = self.cli("submit", "debug-dense", *(word for value in given for word in ("-e", value)), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return str(json.loads(done.stdout)["id"])

    def show(self, job: str) -> dict[str, Any]:
        """Return a job's state; empty before there is one."""
        words = ("/usr/bin/python3", "-I", "/usr/local/bin/primus-cli", "watch", "show", "--folder", f"{JOBS}/{job}", "--json")
        return json.loads(self.cluster.run_on(self.service, *words).stdout)["state"] or {}

    def lines(self, job: str, name: str) -> list[dict[str, Any]]:
        """Return the entries of a JSON lines file in the job's folder."""
        found = []
        for line in self.cluster.run_on(self.service, "cat", f"{JOBS}/{job}/{name}", check=False).stdout.splitlines():
            with suppress(ValueError):  # a line that a kill has torn
                found.append(json.loads(line))
        return found

    def events(self, job: str, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of these kinds in order."""
        return [event for event in self.lines(job, "events.jsonl") if event["kind"] in kinds]

    def losses(self, job: str) -> dict[int, float]:
        """Return the loss of every step, the last one for repeated steps."""
        return {line["step"]: line["loss"] for line in self.lines(job, "run/steps.jsonl") if "loss" in line}

    def wait_for_step(self, job: str, step: int) -> None:
        """Wait until a step is complete."""
        wait_for(lambda: max(self.losses(job), default=0) >= step, f"{job} made no step {step}")

    def finish(self, job: str, *, phase: str = "done") -> dict[str, Any]:
        """Wait for a job's end and check its phase."""
        wait_for(lambda: self.show(job).get("phase") in ENDED, f"{job} has no end", 600)
        state = self.show(job)
        assert state["phase"] == phase, state
        return state

    def hosts(self, job: str) -> list[str]:
        """Return the nodes of the running attempt by rank."""
        return [host["name"] for host in self.show(job)["hosts"]]

    def pods(self, job: str) -> list[dict[str, Any]]:
        """Return a job's pods."""
        asked = self.cluster.kubectl("--namespace", NAMESPACE, "get", "pods", f"--selector=primus-bootstrap.io/job={job}", "--output=json")
        found: list[dict[str, Any]] = json.loads(asked)["items"]
        return found

    def jobs(self) -> list[str]:
        """Return the names of the existing Jobs."""
        return self.cluster.kubectl("--namespace", NAMESPACE, "get", "jobs", "--output=name").split()

    def ranks_on(self, node: str) -> list[str]:
        """Return the trainer's processes on a node."""
        return self.cluster.run_on(node, "pgrep", "--full", "workloads/train/pretrain.py", check=False).stdout.split()

    def not_ready_since(self, node: str) -> float:
        """Return when Kubernetes detected that a node is not Ready."""
        conditions = json.loads(self.cluster.kubectl("get", "node", node, "--output=json"))["status"]["conditions"]
        ready = next(one for one in conditions if one["type"] == "Ready")
        return datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()

    def kill(self, node: str) -> float:
        """Kill every process of a node, and return the time."""
        killed_at = time.time()
        self.cluster.kill(node)
        return killed_at

    def heal(self) -> None:
        """End every job and start every node."""
        for job in json.loads(self.cli("list", "--json").stdout)["jobs"]:
            self.cli("cancel", job["id"])
            wait_for(lambda job=job: self.show(job["id"]).get("phase") in ENDED, f"{job['id']} does not end", 180)  # type: ignore[misc]
        for node, ready in self.cluster.ready().items():
            if not ready:
                self.cluster.start(node)
        wait_for(lambda: all(self.cluster.ready().values()), f"not every node came back: {self.cluster.ready()}")
