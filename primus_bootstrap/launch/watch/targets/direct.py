"""The target `direct`: a systemd unit on each host, started by `primus-cli unit`, to which the broker connects over SSH."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.broker_client import NoAnswerError, RefusedError
from primus_bootstrap.launch.watch.observation import Candidate, Candidates, NodeObservation, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_spec import Host, Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.node_record import NodeRecord

_LOOK_S, _START_S = 12.0, 30.0
MAX_CONNECTIONS = 32
# A connection costs the service host some 60 ms of CPU time. With more hosts, each is queried less often.
QUERIED_PER_TICK = 16


class Nodes(Protocol):
    """The part of the broker that a target uses."""

    def ask_node(self, node: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return a host's answer."""
        ...


@dataclass
class DirectTarget:
    """The hosts of one job."""

    job: Job
    folder: JobFolder
    broker: Nodes
    refused: dict[str, str] = field(default_factory=dict)  # error messages of the newest start, by host
    # The last answers of the hosts that run the newest attempt, the oldest first.
    running: dict[Host, dict[str, Any]] = field(default_factory=dict)

    def candidates(self) -> Candidates:
        """Query every host and spare: whether it answers, is healthy and is free."""
        direct = self.job.direct
        hosts = (*direct.hosts, *direct.spares)
        found = _in_parallel(hosts, self._probe)
        spares = {host.name for host in direct.spares}
        return Candidates(tuple(self._candidate(host, answer, spare=host.name in spares) for host, answer in found.items()))

    def start(self, state: State) -> None:
        """Start the launcher on each host of the attempt; a host where it runs or has run does nothing."""
        self.running = {}

        def one(host: Host) -> str:
            rank = state.hosts.index(host)
            try:
                self._ask(host, "start", state, _START_S, rank=rank)
            except (NoAnswerError, RefusedError) as error:
                return str(error)
            return ""

        answers = _in_parallel(state.hosts, one)
        self.refused = {host.name: answer for host, answer in answers.items() if answer}

    def observe(self, state: State) -> Observation:
        """Query the hosts of the attempt, and read the records of the launchers."""
        answers = self._answers(state)
        records = node_record.read_all(self.folder.attempt(state.attempt))
        nodes = tuple(self._node(host, answers[host], records.get(rank), state) for rank, host in enumerate(state.hosts))
        return Observation(_status(nodes), nodes, hosts=state.hosts)

    def stop(self, state: State, *, force: bool) -> None:
        """Stop the attempt on each host; a host that does not answer ends it when it loses the lease."""

        def one(host: Host) -> None:
            try:
                self._ask(host, "stop", state, _LOOK_S, force=force)
            except (NoAnswerError, RefusedError) as error:
                self.refused[host.name] = str(error)

        _in_parallel(state.hosts, one)

    def _answers(self, state: State) -> dict[Host, dict[str, Any] | str]:
        """Query every host that is not known to run the attempt, and those of the others that were queried longest ago."""
        kept = {host: answer for host, answer in self.running.items() if host in state.hosts and state.phase == states.RUNNING}
        others = [host for host in state.hosts if host not in kept]
        queried = _in_parallel([*others, *list(kept)[:QUERIED_PER_TICK]], lambda host: self._status(host, state))
        answers = {**{host: answer for host, answer in kept.items() if host not in queried}, **queried}
        self.running = {
            host: answer for host, answer in answers.items() if not isinstance(answer, str) and answer.get("state") == "running"
        }
        return answers

    def _ask(self, host: Host, verb: str, state: State, timeout_s: float, **more: Any) -> dict[str, Any]:
        request = {"verb": verb, "job": self.job.id, "attempt": state.attempt, "key": self.folder.key(), **more}
        return self.broker.ask_node(host.name, request, timeout_s=timeout_s)

    def _probe(self, host: Host) -> dict[str, Any] | str:
        try:
            return self.broker.ask_node(host.name, {"verb": "probe"}, timeout_s=_LOOK_S)
        except (NoAnswerError, RefusedError) as error:
            return str(error)

    def _candidate(self, host: Host, answer: dict[str, Any] | str, *, spare: bool) -> Candidate:
        if isinstance(answer, str):
            return Candidate(host, answers=False, spare=spare, why=answer)
        others = [name for name in answer.get("units", ()) if not str(name).startswith(f"primus-job-{self.job.id}-")]
        return Candidate(
            host,
            answers=True,
            health=str(answer.get("health", observations.UNKNOWN)),
            written=_by_our_clock(answer),
            spare=spare,
            busy=", ".join(str(name) for name in others),
            gpus=answer.get("gpus"),
            why=str(answer.get("reason", "")),
        )

    def _status(self, host: Host, state: State) -> dict[str, Any] | str:
        try:
            return self._ask(host, "status", state, _LOOK_S)
        except (NoAnswerError, RefusedError) as error:
            return str(error)

    def _node(self, host: Host, answer: dict[str, Any] | str, record: NodeRecord | None, state: State) -> NodeObservation:
        """Combine a host's answer with the record of its launcher."""
        if record is not None and record.ended is not None:
            return NodeObservation(host.name, observations.ENDED, record.exit_code, why=record.note)
        if isinstance(answer, str):
            return NodeObservation(host.name, observations.SILENT, why=answer)
        if answer.get("state") == "running":
            return NodeObservation(host.name, observations.RUNNING)
        if record is None and state.phase != states.RUNNING:
            return NodeObservation(host.name, observations.ABSENT, why=self.refused.get(host.name, ""))
        restarted = record is not None and record.boot_id != answer.get("boot_id")
        return NodeObservation(host.name, observations.ENDED, restarted=restarted, why="its launcher ended without a record")


def _by_our_clock(answer: dict[str, Any]) -> float:
    """Return the time of a host's health checks by this host's clock: its own may be ahead or behind."""
    written, now = float(answer.get("written", 0.0)), float(answer.get("now", 0.0))
    return time.time() - (now - written) if written and now else written


def _status(nodes: Sequence[NodeObservation]) -> str:
    found = {node.state for node in nodes}
    if observations.RUNNING in found:
        return observations.RUNNING
    return observations.SILENT if observations.SILENT in found and not found & {observations.ENDED} else observations.ENDED


def _in_parallel(hosts: Sequence[Host], one: Callable[[Host], Any]) -> dict[Host, Any]:
    """Return the answers of all hosts, queried in parallel."""
    with ThreadPoolExecutor(max_workers=min(len(hosts), MAX_CONNECTIONS) or 1) as pool:
        queried = {host: pool.submit(one, host) for host in hosts}
        return {host: answer.result() for host, answer in queried.items()}
