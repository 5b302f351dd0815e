"""Fake Slurm commands: a small program with a queue in a folder, which runs job scripts, one process per node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_bootstrap.core.child_processes import descendants
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
_COMMANDS = ("sbatch", "squeue", "sacct", "sinfo", "scancel", "srun")
_PROGRAM = """#!{python}
import json, os, pathlib, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
from primus_bootstrap.core.child_processes import descendants
folder = pathlib.Path({folder!r})
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
given = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
with (folder / "calls").open("a") as file:
    file.write(json.dumps([name, *words]) + "\\n")
broken = folder / f"broken-{{name}}"
if broken.exists():
    time.sleep(float(broken.read_text() or 0))
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")

def jobs():
    found = [json.loads(path.read_text()) for path in sorted((folder / "jobs").glob("*.json"))]
    for job in found:
        if job["state"] == "RUNNING" and not process_is(job["pid"]):
            code = (folder / "jobs" / f"{{job['id']}}.code")
            job["state"] = "COMPLETED" if code.exists() and code.read_text() == "0" else "FAILED"
            save(job)
    return found

def process_is(pid):
    try:
        return pathlib.Path(f"/proc/{{pid}}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False

def save(job):
    (folder / "jobs" / f"{{job['id']}}.json").write_text(json.dumps(job))

def nodes():
    return json.loads((folder / "nodes.json").read_text())

def partitions():
    path = folder / "partitions.json"
    return json.loads(path.read_text()) if path.exists() else {{"gpu*": list(nodes())}}

def size(node):
    path = folder / "sizes.json"
    return json.loads(path.read_text()).get(node, "8|(null)") if path.exists() else "8|(null)"

if name == "sinfo":
    wanted = given.get("--nodes", "").split(",")
    for partition, members in partitions().items():
        for node, state in nodes().items():
            if node in members and (node in wanted or wanted == [""]):
                known = {{"%N": node, "%P": partition, "%T": state, "%c|%G": size(node)}}
                line = given["--format"]
                for word, said in known.items():
                    line = line.replace(word, said)
                print(line)
elif name == "sbatch":
    out = set(given.get("--exclude", "").split(","))
    here = {{name.rstrip("*"): members for name, members in partitions().items()}}
    usual = next(name for name in partitions() if name.endswith("*")).rstrip("*")
    everybody = [node for node in here[given.get("--partition", usual)] if node not in out]
    free = [node for node in everybody if nodes()[node] == "idle"]
    count = int(given["--nodes"])
    if len(everybody) < count:
        sys.exit("sbatch: error: Batch job submission failed: Requested node configuration is not available")
    number = 100 + len(jobs())
    mine = free[:count]
    job = {{"id": number, "name": given["--job-name"], "state": "RUNNING", "nodes": mine, "words": words, "pid": 0}}
    environment = {{**os.environ, "SLURM_JOB_ID": str(number), "SLURM_JOB_NODELIST": ",".join(mine)}}
    shell = f"bash {{words[-1]}}; echo -n $? > {{folder}}/jobs/{{number}}.code"
    log = open(given["--output"].replace("%j", str(number)), "ab")
    job["pid"] = subprocess.Popen(["bash", "-c", shell], env=environment, start_new_session=True, stdout=log, stderr=log).pid
    save(job)
    print(number)
elif name == "srun":
    inner = [word for word in words if not word.startswith("--")][:1]
    inner = words[words.index(inner[0]):]
    children = []
    for index, node in enumerate(os.environ["SLURM_JOB_NODELIST"].split(",")):
        mine = {{**os.environ, "SLURM_NODEID": str(index), "SLURMD_NODENAME": node, "NODE_NAME": node, "SLURM_STEP_ID": "0"}}
        children.append(subprocess.Popen(inner, env=mine))
        (folder / f"pid-{{node}}").write_text(str(children[-1].pid))
    codes = [child.wait() for child in children]
    sys.exit(max(128 - code if code < 0 else code for code in codes))
elif name in ("squeue", "sacct"):
    for job in jobs():
        if job["name"] == given["--name"] and not (name == "squeue" and (folder / "forgotten").exists()):
            line = f"{{job['id']}}|{{job['state']}}|{{','.join(job['nodes'])}}"
            print(line + f"|{{job.get('reason', 'None')}}" if name == "squeue" else line)
elif name == "scancel":
    for job in jobs():
        if str(job["id"]) == words[-1] and job["state"] == "RUNNING":
            launchers = [int((folder / f"pid-{{node}}").read_text()) for node in job["nodes"]]
            if given.get("--signal") == "TERM":
                for pid in launchers:
                    os.kill(pid, signal.SIGTERM)
            else:
                job["state"] = "CANCELLED"
                save(job)
                for pid in (*descendants(job["pid"]), job["pid"]):
                    os.kill(pid, signal.SIGKILL)
"""


@dataclass
class SlurmStandIn:
    """A cluster of nodes that share one machine."""

    folder: Path
    child: subprocess.Popen[bytes] | None = None

    def start(self, *nodes: str) -> None:
        """Create idle nodes, and the commands."""
        (self.folder / "jobs").mkdir(parents=True)
        (self.folder / "bin").mkdir()
        self.nodes(**dict.fromkeys(nodes, "idle"))
        for name in _COMMANDS:
            path = self.folder / "bin" / name
            path.write_text(_PROGRAM.format(python=sys.executable, root=str(ROOT), folder=str(self.folder)))
            path.chmod(0o755)

    @property
    def path(self) -> str:
        """The PATH with the commands first, then this Python."""
        return f"{self.folder}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"

    def nodes(self, **states: str) -> None:
        """Set the states of nodes."""
        path = self.folder / "nodes.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **states}))

    def partitions(self, **members: list[str]) -> None:
        """Set the partitions; a star after a name marks the default one."""
        (self.folder / "partitions.json").write_text(json.dumps(members))

    def sizes(self, **sizes: str) -> None:
        """Set processors and GPUs of nodes, in sinfo's format `64|gpu:h200:8`."""
        (self.folder / "sizes.json").write_text(json.dumps(sizes))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the submitted jobs."""
        return [json.loads(path.read_text()) for path in sorted((self.folder / "jobs").glob("*.json"))]

    def calls(self, name: str) -> list[list[str]]:
        """Return the calls of a command."""
        path = self.folder / "calls"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [words for words in found if words[0] == name]

    def set_state(self, number: int, state: str, **more: Any) -> None:
        """Set the state of a job."""
        path = self.folder / "jobs" / f"{number}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": state, **more}))

    def put(self, state: str, *nodes: str) -> None:
        """Add a first attempt that was not submitted."""
        self.child = subprocess.Popen(["sleep", "300"], start_new_session=True)
        job = {"id": 100, "name": "primus-job-small-0a1b2c-1", "pid": self.child.pid, "words": [], "state": state, "nodes": nodes}
        (self.folder / "jobs" / "100.json").write_text(json.dumps(job))

    def silence(self, node: str) -> None:
        """Power off a node; Slurm does not notice."""
        pid = int((self.folder / f"pid-{node}").read_text())
        _kill((pid,))
        _kill(descendants(pid))

    def lose(self, node: str) -> None:
        """Lose a node; Slurm reports it as down, and the job as failed."""
        pid = int((self.folder / f"pid-{node}").read_text())
        self.nodes(**{node: "down*"})
        for job in self.jobs():
            if job["state"] == "RUNNING" and node in job["nodes"]:
                self.set_state(job["id"], "NODE_FAIL")
                _kill((*descendants(pid), pid))
                _kill((*descendants(job["pid"]), job["pid"]))

    def end(self) -> None:
        """End all processes."""
        for job in self.jobs():
            _kill((*descendants(job["pid"]), job["pid"]))
        if self.child is not None:
            self.child.wait(LIMIT_S)


def break_command(rig: SlurmStandIn, name: str, *, broken: bool = True, after_s: float = 0.0) -> None:
    """Make a command fail as without a controller."""
    path = rig.folder / f"broken-{name}"
    if broken:
        path.write_text(str(after_s))
    else:
        path.unlink()


def _kill(pids: tuple[int, ...]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
