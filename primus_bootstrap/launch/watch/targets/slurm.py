"""The target `slurm`: one sbatch job per attempt, found by its name.

Jobs are submitted with --no-requeue. A requeued job waits for minutes (BeginTime), keeps its list of excluded nodes, and is the same
attempt again. The watcher submits a new job at once instead.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.launch.run_topology import expand_nodes
from primus_bootstrap.launch.runtimes.slurm import CPUS_LINE, STEP
from primus_bootstrap.launch.self_exec import own_command
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.job_spec import Host
from primus_bootstrap.launch.watch.observation import Candidate, Candidates, NodeObservation, Observation
from primus_bootstrap.launch.watch.targets.slurm_size import FORMAT, needs_size, read_sizes, size_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.node_record import NodeRecord

# The role slurm creates it if the group spare has hosts: the nodes of the default partition and the spares, which Slurm uses last.
SPARE_PARTITION = "spare"
_COMMAND_S = 20.0
_SHOWN = 300
_COLUMNS = 3
_SETTINGS = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")  # environment variables that change the commands
_QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})
_PAUSED = ("SUSPENDED", "STOPPED")
_VERDICTS = {
    "NODE_FAIL": observations.NODE_FAIL,
    "BOOT_FAIL": observations.NODE_FAIL,
    "PREEMPTED": observations.PREEMPTED,
    "TIMEOUT": observations.TIME_LIMIT,
    "DEADLINE": observations.TIME_LIMIT,
    "CANCELLED": observations.CANCELLED,
}
_USABLE = ("idle", "mixed", "allocated", "completing", "planned")
# RequeueExit in slurm.conf often contains 75 (docs/slurm.md), and Slurm must not requeue a job that the watcher restarts.
_SCRIPT = """#!/bin/bash
{cpus}{step}
code=$?
if [ "$code" -eq 75 ]; then exit 0; fi
exit "$code"
"""


class SlurmUnavailableError(Exception):
    """Slurm did not answer; the state of the job is unknown."""


@dataclass(frozen=True)
class Listed:
    """One job in Slurm's list."""

    job_id: str
    state: str
    nodes: tuple[str, ...]
    reason: str = ""


@dataclass
class SlurmTarget:
    """The Slurm jobs of one job. `refused` is the error of the newest start."""

    job: Job
    folder: JobFolder
    refused: str = ""

    def candidates(self) -> Candidates:
        """Ask which nodes the job's partition has, which only that of the spare hosts, and which of them Slurm can use now."""
        try:
            # --all: hidden partitions accept jobs that name them.
            lines = _run(["sinfo", "--all", "--noheader", "--Node", "--format=%N|%P|%T"]).splitlines()
        except SlurmUnavailableError as error:
            return Candidates(chosen_by_target=True, why=str(error))
        rows = [line.split("|") for line in lines if line.count("|") == _COLUMNS - 1]
        mine = {name: _usable(state) for name, partition, state in rows if self._is_mine(partition)}
        others = {name: _usable(state) for name, partition, state in rows if partition == SPARE_PARTITION}
        # A job that names a partition uses no other nodes, and all nodes of a job are from one partition.
        spare = {} if self.job.slurm.partition or not mine.keys() <= others.keys() else others
        found = [Candidate(Host(name, name), answers=able) for name, able in mine.items()]
        found += [Candidate(Host(name, name), answers=able, spare=True) for name, able in spare.items() if name not in mine]
        return Candidates(tuple(found), chosen_by_target=True)

    def _is_mine(self, partition: str) -> bool:
        """Return whether it is the job's partition, or the default one."""
        return _is_partition(partition, self.job.slurm.partition)

    def start(self, state: State) -> None:
        """Submit the attempt unless Slurm has it already; if that is unknown, do nothing."""
        self.refused = ""
        try:
            if self._find(state) is None:
                _run(self._sbatch(state, self._size(state)))
        except SlurmUnavailableError as error:
            self.refused = str(error)

    def observe(self, state: State) -> Observation:
        """Query the Slurm job, and read the records of the launchers."""
        try:
            found = self._find(state)
        except SlurmUnavailableError as error:
            return Observation(observations.SILENT, why=str(error))
        records = {record.host: record for record in node_record.read_all(self.folder.attempt(state.attempt)).values()}
        if found is None:
            if not records and not state.target_id:
                return Observation(observations.ABSENT, why=self.refused)
            found = Listed(state.target_id, "FORGOTTEN", tuple(records))
        # While a job completes, Slurm lists only the nodes that are not released yet: https://slurm.schedmd.com/squeue.html (%N)
        names = tuple(host.name for host in state.hosts) or found.nodes
        found = replace(found, nodes=names)
        status = observations.QUEUED if found.state in _QUEUED else observations.RUNNING if found.state in _RUNNING else observations.ENDED
        verdict = _VERDICTS.get(found.state, "")
        if verdict == observations.CANCELLED and state.stopping:
            verdict = ""  # by this watcher
        nodes = self._nodes(found, status, verdict, records, stopping=bool(state.stopping))
        waits = _waits(found) if found.state in _QUEUED else ""
        return Observation(
            status,
            nodes,
            verdict,
            found.job_id,
            tuple(Host(name, name) for name in names),
            why=f"Slurm job {found.job_id} is {found.state}{waits}",
            paused=found.state in _PAUSED,
        )

    def stop(self, state: State, *, force: bool) -> None:
        """Send SIGTERM to the launchers once, or cancel the job."""
        try:
            found = self._find(state)
            if found is None or (found.state not in _QUEUED and found.state not in _RUNNING):
                return
            if force or found.state in _QUEUED:
                _run(["scancel", found.job_id])
                return
            marker = self.folder.attempt(state.attempt) / "asked-to-stop"
            if not marker.exists():
                marker.touch()
                _run(["scancel", "--signal=TERM", found.job_id])
        except SlurmUnavailableError as error:
            self.refused = str(error)

    def _find(self, state: State) -> Listed | None:
        """Return the Slurm job of an attempt by its name, from the queue or from the accounting."""
        name = self.job.unit(state.attempt)
        user = f"--user={self.job.user}"
        # An sbatch that timed out may have succeeded. Of two jobs, the one that claimed the attempt counts.
        mine = node_record.owner(self.folder.attempt(state.attempt)) or state.target_id
        listed = _listed(_run(["squeue", "--noheader", "--states=all", f"--name={name}", user, "--format=%A|%T|%N|%r"]), mine)
        if listed is not None or (state.phase == states.STARTING and not state.target_id):
            return listed
        columns = "--format=JobIDRaw,State,NodeList"
        try:
            words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--name={name}", user, "--starttime=now-30days", columns]
            return _listed(_run(words), mine)
        except SlurmUnavailableError:  # without accounting only the records of the launchers are left
            return None

    def _size(self, state: State) -> tuple[str, ...]:
        """Return the options for processors and memory; the nodes are queried only if needed."""
        if not needs_size(self.job):
            return ()
        partition = self._partition(state)
        nodes = read_sizes(_run(["sinfo", "--all", "--noheader", "--Node", f"--format={FORMAT}"]))
        return size_options(self.job, (node for node in nodes if _is_partition(node.partition, partition)))

    def _partition(self, state: State) -> str:
        """Return the partition of an attempt; empty for the default one."""
        return SPARE_PARTITION if state.spares else self.job.slurm.partition

    def _sbatch(self, state: State, size: Sequence[str]) -> list[str]:
        attempt = self.folder.attempt(state.attempt)
        attempt.mkdir(parents=True, exist_ok=True)
        inner = (*own_command("python3"), "attempt", "--folder", str(self.folder.path), "--attempt", str(state.attempt))
        script = attempt / "job.sbatch"
        script.write_text(_SCRIPT.format(cpus=CPUS_LINE, step=shlex.join(("srun", *STEP, *inner))), "utf-8")
        job = self.job
        excluded = ",".join(item.host for item in state.excluded)
        words = [
            "sbatch", "--parsable", "--no-requeue", "--open-mode=append", STEP[0], f"--nodes={job.nodes}",
            f"--job-name={job.unit(state.attempt)}", f"--comment=primus:{job.id}:{state.attempt}", f"--output={attempt}/slurm-%j.out",
        ]  # fmt: skip
        words += [f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []
        words += size
        partition = self._partition(state)
        words += [f"--partition={partition}"] if partition else []
        words += [f"--exclude={excluded}"] if excluded else []
        return [*words, *job.slurm.options, str(script)]

    def _nodes(
        self, found: Listed, status: str, verdict: str, records: Mapping[str, NodeRecord], *, stopping: bool
    ) -> tuple[NodeObservation, ...]:
        """Combine Slurm's answer with the records of the launchers."""
        ended = {name: records[name] for name in found.nodes if name in records and records[name].ended is not None}
        silent = [name for name in found.nodes if name not in ended]
        # While the job runs and no node has ended, the nodes need no check.
        doubtful = status == observations.ENDED or (
            status == observations.RUNNING and (found.state == "COMPLETING" or bool(ended) or stopping)
        )
        responding = self._responding(silent) if silent and doubtful else {}
        others = {name: _silent(name, status, verdict, responding.get(name)) for name in silent}
        began = any(name in records for name in found.nodes)
        if not began and status == observations.ENDED and verdict != observations.NODE_FAIL and False not in responding.values():
            others = {name: NodeObservation(name, observations.ENDED) for name in silent}  # it ended before a launcher started
        observed = {name: NodeObservation(name, observations.ENDED, record.exit_code, why=record.note) for name, record in ended.items()}
        return tuple({**observed, **others}[name] for name in found.nodes)

    def _responding(self, names: Sequence[str]) -> dict[str, bool]:
        """Return whether these nodes respond to Slurm; empty if Slurm does not answer."""
        try:
            lines = _run(["sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N|%T"]).splitlines()
        except SlurmUnavailableError:
            return {}
        pairs = [line.strip().partition("|") for line in lines if line]
        # * marks a node that does not respond: https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES
        return {name: not (state.startswith("down") or "*" in state) for name, _, state in pairs}


def _waits(found: Listed) -> str:
    """Return why a job waits, and how to release a held job."""
    held = found.state in ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD") or found.reason.startswith("JobHeld")
    return f" ({found.reason or 'no reason given'})" + (f"; to release it: scontrol release {found.job_id}" if held else "")


def _silent(name: str, status: str, verdict: str, responds: bool | None) -> NodeObservation:  # noqa: FBT001 - None: unknown
    """Return the observation of a node whose launcher left no exit code."""
    if verdict not in ("", observations.NODE_FAIL):
        return NodeObservation(name, observations.ENDED)
    if responds is False:
        return NodeObservation(name, observations.SILENT, why="Slurm reports it as not responding")
    if status != observations.ENDED:
        return NodeObservation(name, observations.RUNNING)
    if verdict == observations.NODE_FAIL and responds:
        return NodeObservation(name, observations.ENDED, why="another node was lost")
    why = "Slurm reports the end of the job, and the launcher left no exit code"
    return NodeObservation(name, observations.SILENT, why=why, host_responds=bool(responds))


def _is_partition(partition: str, name: str) -> bool:
    """Return whether it is the named partition, or the default one, which sinfo marks with a star."""
    return partition.rstrip("*") == name if name else partition.endswith("*")


def _usable(state: str) -> bool:
    return state.rstrip("+-") in _USABLE  # a sign like * or ~ marks a node that does not answer or is switched off


def _listed(text: str, mine: str) -> Listed | None:
    """Return the job with this number, else the newest one; sacct prints `CANCELLED by 1000` and no reason."""
    rows = [(*line.strip().split("|", 3), "")[:4] for line in text.splitlines() if line.count("|") >= _COLUMNS - 1]
    if not rows:
        return None
    number, state, nodes, reason = max(rows, key=lambda row: (row[0] == mine, int(row[0]) if row[0].isdecimal() else 0))
    words = state.split()
    named = nodes.strip("() ") not in ("", "null", "None assigned")
    return Listed(number, words[0] if words else "", expand_nodes(nodes) if named else (), "" if reason == "None" else reason)


def _run(words: list[str]) -> str:
    """Return the output of a Slurm command.

    Raises:
        SlurmUnavailableError: It failed, or did not end in time.
    """
    environment = {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or not name.startswith(_SETTINGS)}
    try:
        done = run_command(words, timeout_s=_COMMAND_S, env=environment)
    except TimeoutError as error:
        raise SlurmUnavailableError(f"{words[0]} did not answer within {_COMMAND_S:.0f} s") from error
    except OSError as error:
        raise SlurmUnavailableError(f"{words[0]}: {error}") from error
    if done.code:
        output = " ".join((done.stderr or done.stdout).split())[-_SHOWN:]
        raise SlurmUnavailableError(f"{words[0]} ended with exit code {done.code}: {output}")
    return done.stdout
