"""The program `attempt`: runs one node's launcher of one attempt, as the job's user, while the attempt has its lease.

    primus-cli attempt --folder ROOT/ID --attempt N [--rank R]

In a pod of Kubernetes the rank and the node are in the environment, and the record of rank 0 contains its address.

The lease is state.json on the shared storage. The attempt may run while it is the newest one and not revoked. A node that reads something
else, or cannot read the lease for `lease_s`, ends its launcher. The watcher starts the next attempt only after every node has ended or
that time is over, so two attempts never write at the same time.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core import child_processes
from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.core.errors import PlanError, PrimusError
from primus_bootstrap.launch.diagnose import kernel_log
from primus_bootstrap.launch.runtimes.forwarded_plugins import FOLDER as PLUGINS
from primus_bootstrap.launch.self_exec import own_command
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch.classification import NOT_ITS_TURN
from primus_bootstrap.launch.watch.job_folder import JobFolder
from primus_bootstrap.launch.watch.job_owner import check_own_folder
from primus_bootstrap.launch.watch.job_spec import DIRECT, KUBERNETES
from primus_bootstrap.launch.watch.kubernetes_objects import POD_IP, POD_NAME, POD_NODE, POD_RANK
from primus_bootstrap.launch.watch.node_record import NodeRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOOK_S = 1.0
_AFTER_GRACE_S = 20.0
_RECORD_S = 10.0
# Below Linux's range of ports for outgoing connections. Each attempt has another port, so that a stale process does not disturb it.
_FIRST_PORT, _PORTS = 10000, 20000


def _now() -> float:
    """Return a clock in seconds that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Lease:
    """The lease of this attempt. A thread reads it: storage that hangs must not block the program that ends the launcher."""

    folder: JobFolder
    attempt: int
    limit_s: float
    revoked: str = ""
    _read_at: float = field(default_factory=_now)

    def look(self) -> None:
        """Read the lease once. If it cannot be read, it stays as it is. Its time counts from before the read."""
        began = _now()
        state = None
        with suppress(PrimusError):
            state = self.folder.state()
        if state is None:
            return
        if state.attempt != self.attempt or state.revoked:
            self.revoked = f"the lease of attempt {self.attempt} was revoked (newest attempt: {state.attempt})"
        else:
            self._read_at = began

    def start(self) -> None:
        """Read the lease again and again until this process ends."""
        threading.Thread(target=self._loop, name="lease", daemon=True).start()

    @property
    def problem(self) -> str:
        """Why this attempt must end now; empty while it may run."""
        late = _now() - self._read_at
        return self.revoked or (f"the lease could not be read for {late:.0f} s" if late > self.limit_s else "")

    def _loop(self) -> None:
        while not self.revoked:
            time.sleep(_LOOK_S)
            self.look()


def main(words: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="primus-cli attempt", description="Runs one node's launcher of one attempt of a job.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--rank", type=int, default=None, help="number of this node; default: from Slurm or the pod")
    options = parser.parse_args(list(words))
    try:
        return run(JobFolder(options.folder), options.attempt, options.rank)
    except PrimusError as error:
        sys.stderr.write(f"primus-cli attempt: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"primus-cli attempt: {options.folder}: the shared storage failed: {error}\n")
        return os.EX_IOERR


def run(folder: JobFolder, number: int, rank: int | None) -> int:
    """Run the launcher if the attempt has its lease, and record the end.

    Raises:
        PrimusError: The job cannot be read, or this is not one of its nodes.
    """
    # In a pod the volume's driver creates the folders above, and the broker has chosen the volume.
    check_own_folder(folder.path, parents=POD_RANK not in os.environ)
    job = folder.job()
    state = folder.state()
    rank = _rank(rank)
    record = _record(job, state, rank)
    if state is None or state.attempt != number or state.revoked:
        sys.stderr.write(f"primus-cli attempt: attempt {number} has no lease\n")
        return NOT_ITS_TURN
    taken = node_record.claim(folder.attempt(number), record)
    if taken:
        sys.stderr.write(f"primus-cli attempt: attempt {number} was already started, by {taken}\n")
        return NOT_ITS_TURN
    lease = Lease(folder, number, float(job.policy.lease_s))
    lease.start()
    attempt = folder.attempt(number)
    with (attempt / f"node-{rank:05d}.log").open("ab", buffering=0) as output, child_processes.StopSignals() as signals:
        outcome = _Outcome(0)
        master = state.hosts[0].address if job.target == DIRECT else record.address
        if job.target == KUBERNETES and rank:
            master, outcome = _first_address(attempt, lease, signals)
        if not outcome.code:
            write_plugins(job, folder)
            outcome = _supervise(launcher_words(job, state, folder, rank, master), job, output, lease, signals)
    if outcome.note:
        _record_end(attempt, folder.run, record, outcome)
    else:
        node_record.close(attempt, record, ended=time.time(), exit_code=outcome.code)
    return outcome.code


def _rank(given: int | None) -> int:
    """Return this node's number: from the option, from Slurm or from the pod."""
    text = (os.environ.get("SLURM_NODEID") or os.environ.get(POD_RANK, "")) if given is None else str(given)
    if not text.isdecimal():
        raise PlanError("this node has no number", fix="pass --rank, or run in a Slurm step or in a pod of the watcher")
    return int(text)


def _record(job: Job, state: State | None, rank: int) -> NodeRecord:
    node = socket.gethostname()
    if job.target == KUBERNETES:
        host, address, pod = (os.environ.get(name, "") for name in (POD_NODE, POD_IP, POD_NAME))
        if state is None or not (host and address and pod) or rank >= job.nodes:
            raise PlanError(f"this is not the pod of rank {rank} of the job", fix="let the watcher start it")
        return NodeRecord(rank, host, node, read_boot_id(), job.unit(state.attempt), time.time(), address=address, pod=pod)
    if job.target != DIRECT:
        node = os.environ.get("SLURMD_NODENAME") or node
        return NodeRecord(rank, node, node, read_boot_id(), os.environ.get("SLURM_JOB_ID", ""), time.time())
    if state is None or rank >= len(state.hosts):
        raise PlanError(f"the attempt has no node {rank}", fix="let the watcher start it")
    return NodeRecord(rank, state.hosts[rank].name, node, read_boot_id(), "", time.time())


def read_boot_id() -> str:
    """Return the id of this boot of the machine; empty if the kernel provides none."""
    try:
        return BOOT_ID.read_text("utf-8").strip()
    except OSError:
        return ""


def _first_address(folder: Path, lease: Lease, signals: child_processes.StopSignals) -> tuple[str, _Outcome]:
    """Wait for rank 0 while this attempt may run; return its address, or how the wait ended."""
    while True:
        first = node_record.read_all(folder).get(0)
        if first is not None and first.address:
            return first.address, _Outcome(0)
        if lease.problem:
            return "", _Outcome(NOT_ITS_TURN, lease.problem)
        if signals.first is not None:
            return "", _Outcome(128 + signals.first, "it was stopped before rank 0 had started")
        time.sleep(_LOOK_S)


def launcher_words(job: Job, state: State, folder: JobFolder, rank: int, master: str) -> tuple[str, ...]:
    """Return the command line of this node's primus-cli; `master` is rank 0's address."""
    shape: list[str] = ["--nodes-from=slurm"]
    if job.target in (DIRECT, KUBERNETES):
        port = _FIRST_PORT + (zlib.crc32(job.id.encode()) + state.attempt) % _PORTS
        shape = [f"--nnodes={job.nodes}", f"--node-rank={rank}", f"--master-addr={master}", f"--master-port={port}"]
    if job.processes:
        shape.append(f"--nproc={job.processes}")
    own = own_command(sys.executable)
    plugins = (f"--plugin={folder.run / PLUGINS}",) if job.plugins else ()
    return (*own, f"--output={folder.run}", "direct", *shape, f"--grace={job.grace_s}", *plugins, *job.options, "--", *job.words)


def write_plugins(job: Job, folder: JobFolder) -> None:
    """Write the job's plug-ins to the run folder, where every node finds them."""
    for name, text in job.plugins.items():
        write_if_changed(folder.run / PLUGINS / name, text)


@dataclass(frozen=True)
class _Outcome:
    """The exit code of the launcher, and why this program ended it."""

    code: int
    note: str = ""


def _supervise(words: Sequence[str], job: Job, output: IO[bytes], lease: Lease, signals: child_processes.StopSignals) -> _Outcome:
    """Run the launcher until its end, or end it once the lease is lost."""
    environment = {**os.environ, **job.environment, "PRIMUS_JOB_ID": job.id}
    child_processes.become_subreaper()
    home = environment.get("HOME", "")
    child = child_processes.start(words, environment, output=output, folder=home if home and Path(home).is_dir() else "/")
    forwarded = False
    try:
        while True:
            code = child_processes.poll(child)
            if code is not None:
                return _Outcome(128 - code if code < 0 else code)
            if lease.problem:
                return _Outcome(NOT_ITS_TURN, lease.problem)
            if signals.first is None:
                continue
            if not forwarded:
                forwarded = True
                child.terminate()
            if time.monotonic() - signals.first_at > job.grace_s + _AFTER_GRACE_S:
                return _Outcome(128 + signals.first, "it did not end within the grace period")
    finally:
        child_processes.end_descendants(0.0)


def _record_end(folder: Path, run_dir: Path, record: NodeRecord, outcome: _Outcome) -> None:
    """Save the kernel log and the end of the launcher; give up if the storage does not answer in time."""

    def write() -> None:
        with suppress(OSError):
            kernel_log.collect(run_dir, record.node, record.rank, record.started)
            node_record.close(folder, record, ended=time.time(), exit_code=outcome.code, note=outcome.note)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(_RECORD_S)
    if thread.is_alive():
        os._exit(outcome.code)
