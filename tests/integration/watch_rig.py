"""Nodes for the tests of primus-watch: an sshd per node on a loopback address, a broker, the real programs, and a fake systemd."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.child_processes import descendants
from primus_bootstrap.launch import zipapp_file
from primus_bootstrap.launch.watch import job_folder as folders
from tests.integration.sshd_rig import make_key
from tests.unit.engine_rig import free_port
from tests.waiting import LIMIT_S, listens, until

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.job_folder import JobFolder

ROOT = Path(__file__).resolve().parents[2]
needs_sshd = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/sbin/sshd").exists(), reason="needs root and /usr/sbin/sshd (Debian: openssh-server)"
)
_SYSTEMD_RUN = """#!{python}
import json, os, pathlib, subprocess, sys
words = sys.argv[1:]
options = dict(word.lstrip("-").partition("=")[::2] for word in words[: words.index("--")])
folder = pathlib.Path(os.environ["NODE_FOLDER"], "units")
unit = folder / options["unit"]
assert "collect" in options and options["uid"].isdecimal(), options
log = (folder / "log").open("ab")
child = subprocess.Popen(words[words.index("--") + 1 :], start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
unit.write_text(json.dumps({{"pid": child.pid, "words": words}}))
"""
_SYSTEMCTL = """#!{python}
import fnmatch, json, os, pathlib, signal, sys
sys.path.insert(0, {root!r})
from primus_bootstrap.core.child_processes import descendants
verb, *words = sys.argv[1:]
names = [word for word in words if not word.startswith("-")]
units = pathlib.Path(os.environ["NODE_FOLDER"], "units")

def pid(name):
    try:
        number = json.loads((units / name).read_text())["pid"]
        state = pathlib.Path(f"/proc/{{number}}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, ValueError):
        return 0
    return 0 if state == b"Z" else number

if verb == "list-units":
    found = [path.name for path in units.glob("primus-job-*") if fnmatch.fnmatch(path.name, names[0]) and pid(path.name)]
    print("\\n".join(f"{{name}} loaded" for name in found))
elif verb == "show":
    print("active" if pid(names[0]) else "inactive")
elif verb == "stop" and pid(names[0]):
    os.kill(pid(names[0]), signal.SIGTERM)
elif verb == "kill" and pid(names[0]):
    for number in (*descendants(pid(names[0])), pid(names[0])):
        os.kill(number, signal.SIGKILL)
"""
# Trains like the trainer does, as far as a launcher and a watcher see it: steps, checkpoints, resume, SIGTERM, exit codes.
TRAIN = """
import json, os, pathlib, signal, sys, time
steps, pause = int(sys.argv[1]), float(sys.argv[2])
run = pathlib.Path(os.environ["RUN_DIR"])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
checkpoints = run / "checkpoints"
checkpoints.mkdir(exist_ok=True)
done = [int(path.name[5:]) for path in checkpoints.glob("step-*")]
step = max(done, default=0)
print(f"goes on from step {step}", flush=True)

def save(step):
    folder = checkpoints / f"step-{step:08d}"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    (checkpoints / "latest").write_text(folder.name)

for step in range(step + 1, steps + 1):
    drill = run / f"drill-{step}"
    if drill.exists():
        kind = drill.read_text()
        if not kind.startswith("again"):
            drill.unlink()
        if "hang" in kind:
            time.sleep(3600)
        if "nan" in kind:
            print("train: rank 0: loss is not finite at step", step)
            sys.exit(76)
        if "crash" in kind:
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(pause)
    with (run / "steps.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "node": os.environ["NODE_NAME"], "loss": 1.0 / step}) + "\\n")
    if step % 5 == 0:
        save(step)
    if asked:
        if step % 5:
            save(step)
        sys.exit(75)
"""


@dataclass
class Node:
    """A host: an sshd that runs only primus-unit, and its units."""

    name: str
    address: str
    folder: Path
    sshd: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def launchers(self) -> tuple[int, ...]:
        """Return the main process of each running unit."""
        found = []
        for path in (self.folder / "units").glob("primus-job-*"):
            with suppress(ValueError):
                found.append(json.loads(path.read_text())["pid"])
        return tuple(pid for pid in found if _runs(pid))

    def ranks(self) -> tuple[int, ...]:
        """Return the descendants of the units' main processes."""
        return tuple(pid for launcher in self.launchers() for pid in descendants(launcher))

    def kill(self) -> None:
        """Lose the node: it does not answer, and all its processes are killed."""
        self.cut()
        launchers = self.launchers()
        _send(launchers, signal.SIGSTOP)
        _send((*self.ranks(), *launchers), signal.SIGKILL)

    def cut(self) -> None:
        """Disconnect the node: it does not answer, and its processes continue."""
        if self.sshd is not None:
            _send((*descendants(self.sshd.pid), self.sshd.pid), signal.SIGKILL)  # Open sessions no longer answer.
            self.sshd.wait(LIMIT_S)
            self.sshd = None


@dataclass
class Site:
    """Nodes with a shared folder, and this machine as the service host."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    port: int = 0
    bundled: bool = False  # The only file on hosts; no other Python package.
    watcher: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    broker: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        """The socket of the broker."""
        return self.folder / "broker.sock"

    @property
    def host_keys(self) -> Path:
        """A file per node with its address and host key."""
        return self.folder / "known_hosts.d"

    @property
    def jobs(self) -> Path:
        """The folder of all jobs."""
        return self.folder / "jobs"

    @property
    def program(self) -> Path:
        """The zip application for hosts."""
        return self.folder / "primus-cli"

    def start(self, *names: str) -> None:
        """Start nodes."""
        self.jobs.mkdir()
        self.host_keys.mkdir()
        if self.bundled:
            zipapp_file.write_zipapp(self.program, workloads=ROOT / "workloads")
        self.port = free_port()
        programs = self.folder / "programs"
        programs.mkdir()
        for name, text in (("systemd-run", _SYSTEMD_RUN), ("systemctl", _SYSTEMCTL)):
            (programs / name).write_text(text.format(python=sys.executable, root=str(ROOT)))
            (programs / name).chmod(0o755)
        (self.folder / "train.py").write_text(TRAIN)
        site = {"schema": "primus.workload-site/2", "folder": str(self.jobs), "min_uid": 0, "properties": ["LimitNOFILE=1024"]}
        site.update(accounts=[me()], refuse_sudo=False)
        (self.folder / "workload.json").write_text(json.dumps(site))
        for name in ("host_key", "user_key"):
            make_key(self.folder / name)
        for number, name in enumerate(names, 1):
            self.nodes[name] = Node(name, f"127.0.0.{number}", self.folder / name)
            (self.folder / name / "units").mkdir(parents=True)
            self.bring(name)
        key = (self.folder / "host_key.pub").read_text()
        for node in self.nodes.values():
            (self.host_keys / node.name).write_text(f"[{node.address}]:{self.port} {key}")
        self.start_broker()

    def start_broker(self, kubernetes: dict[str, Any] | None = None) -> None:
        """Start the broker, with these rules for Kubernetes."""
        settings = {
            "schema": "primus.broker-settings/1",
            "folder": str(self.jobs),
            "accounts": [me()],
            "host_keys": str(self.host_keys),
            "account": me(),
            "identity": str(self.folder / "user_key"),
            "kubernetes": kubernetes or {},
        }
        path = self.folder / "broker.json"
        path.write_text(json.dumps(settings))
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from primus_bootstrap.launch.watch.broker import main; main(sys.argv[1:])"
        start = (sys.executable, "-I", str(self.program), "broker") if self.bundled else (sys.executable, "-c", code)
        with (self.folder / "broker.log").open("ab") as log:
            self.broker = subprocess.Popen([*start, "--settings", str(path), "--socket", str(self.socket)], stderr=log)
        until(self.socket.exists, "the broker")

    def bring(self, name: str) -> None:
        """Start a node's sshd."""
        node = self.nodes[name]
        config = node.folder / "sshd_config"
        entry = node.folder / "entry"
        unit = f"from primus_bootstrap.launch.watch.node_agent import main; main(['--site', '{self.folder}/workload.json'])"
        start = f'{sys.executable} -c "{unit}"'
        if self.bundled:
            start = f"{sys.executable} -I {self.program} unit --site {self.folder}/workload.json"
        entry.write_text(
            f"#!/bin/sh\nexport NODE_NAME={name} NODE_FOLDER={node.folder} PATH={self.folder}/programs:/usr/bin:/bin\n"
            f"{'' if self.bundled else f'export PYTHONPATH={ROOT}'}\nexec {start}\n"
        )
        entry.chmod(0o755)
        user_key = (self.folder / "user_key.pub").read_text()
        (node.folder / "authorized_keys").write_text(f'restrict,command="{entry}" {user_key}')
        config.write_text(
            f"Port {self.port}\nListenAddress {node.address}\nHostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {node.folder}/authorized_keys\nStrictModes no\n"
            "UsePAM no\nPidFile none\nPermitRootLogin yes\nSetEnv SHLVL=2\nMaxStartups 100\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        node.sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
        until(lambda: listens(node.address, self.port), f"the sshd of {name}")

    def job(self, name: str = "small", **changes: Any) -> dict[str, Any]:
        """Return job.json of a job with 20 steps on one node, with one spare."""
        names = list(self.nodes)
        hosts = [{"name": name, "address": self.nodes[name].address} for name in names]
        job = {
            "schema": "primus.job/1",
            "id": f"{name}-0a1b2c",
            "name": name,
            "user": me(),
            "target": "direct",
            "nodes": 1,
            "words": ["20", "0.2"],
            "options": ["--single", f"--script={self.folder}/train.py"],
            "grace_s": 5,
            "policy": {"lost_after_s": 5, "settle_s": 1, "lease_s": 5, "backoff_s": [0, 1], "progress_timeout_s": 60},
            "direct": {"hosts": hosts[:1], "spares": hosts[1:]},
        }
        policy = {**job["policy"], **changes.pop("policy", {})}  # type: ignore[dict-item]
        return {**job, **changes, "policy": policy}

    def submit(self, job: dict[str, Any]) -> JobFolder:
        """Create the job's folder."""
        made, _ = folders.create(self.jobs, json.dumps(job))
        return made

    def watch(self, folder: JobFolder, **environment: str) -> subprocess.Popen[bytes]:
        """Start primus-watch."""
        start = (sys.executable, "-I", str(self.program), "watch") if self.bundled else watch_words()
        command = (*start, "run", "--every-s", "0.3", "--folder", str(folder.path), "--broker", str(self.socket))
        with (self.folder / "watch.log").open("ab") as log:
            self.watcher = subprocess.Popen(command, stderr=log, env={**os.environ, **environment})
        return self.watcher

    def kill_watcher(self) -> None:
        """Kill the watcher."""
        if self.watcher is not None and self.watcher.poll() is None:
            self.watcher.kill()
            self.watcher.wait(LIMIT_S)

    def end(self) -> None:
        """End all processes."""
        self.kill_watcher()
        if self.broker is not None:
            self.broker.terminate()
            self.broker.wait(LIMIT_S)
        for node in self.nodes.values():
            node.kill()


def me() -> str:
    """Return the name of the account that runs the tests."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _runs(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _send(pids: tuple[int, ...], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def watch_words() -> tuple[str, ...]:
    """Return the command line of `primus-cli watch`."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from primus_bootstrap.launch.watch.watch_program import main; sys.exit(main())"
    return (sys.executable, "-c", code)


def steps(folder: JobFolder) -> list[dict[str, Any]]:
    """Return the lines of steps.jsonl."""
    path = folder.run / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def events(folder: JobFolder, *kinds: str) -> list[dict[str, Any]]:
    """Return the events of some kinds, or all."""
    path = folder.path / "events.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in found if not kinds or event["kind"] in kinds]
