"""The target `direct`: a systemd unit on each host, started by the program `primus-cli unit` there, which the broker asks over SSH."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch import observation as seeing
from primus_bootstrap.launch.watch.broker_client import NoAnswerError, RefusedError
from primus_bootstrap.launch.watch.observation import Candidate, Candidates, NodeObservation, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_spec import Host, Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.node_record import NodeRecord

_LOOK_S, _START_S = 12.0, 30.0
AT_ONCE = 32
# A connection costs the service host some 60 ms of a processor, and its node a process: with more hosts, each is asked less often.
ASKED_A_LOOK = 16


class Nodes(Protocol):
    """Who asks hosts: the broker."""

    def ask_node(self, node: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return a host's answer."""
        ...


@dataclass
class DirectTarget:
    """The hosts of one job. `refused` keeps what hosts said to the newest start, for people.

    `running` keeps the answers of the hosts of the newest attempt that run it, in the order in which they were asked.
    """

    job: Job
    folder: JobFolder
    broker: Nodes
    refused: dict[str, str] = field(default_factory=dict)
    running: dict[Host, dict[str, Any]] = field(default_factory=dict)

    def candidates(self) -> Candidates:
        """Ask every host and spare whether it is there, healthy and free."""
        direct = self.job.direct
        hosts = (*direct.hosts, *direct.spares)
        found = _each(hosts, self._probe)
        spares = {host.name for host in direct.spares}
        return Candidates(tuple(self._candidate(host, answer, spare=host.name in spares) for host, answer in found.items()))

    def start(self, state: State) -> None:
        """Start the launcher on each host of the attempt; a host where it runs or has run says so and does nothing."""
        self.running = {}

        def one(host: Host) -> str:
            rank = state.hosts.index(host)
            try:
                self._ask(host, "start", state, _START_S, rank=rank)
            except (NoAnswerError, RefusedError) as error:
                return str(error)
            return ""

        answers = _each(state.hosts, one)
        self.refused = {host.name: answer for host, answer in answers.items() if answer}

    def observe(self, state: State) -> Observation:
        """Ask the hosts of the attempt, and read what the launchers wrote."""
        answers = self._answers(state)
        records = node_record.read_all(self.folder.attempt(state.attempt))
        nodes = tuple(self._node(host, answers[host], records.get(rank), state) for rank, host in enumerate(state.hosts))
        return Observation(_status(nodes), nodes, hosts=state.hosts)

    def stop(self, state: State, *, force: bool) -> None:
        """Ask each host of the attempt to stop it; who does not answer has its lease to look at."""

        def one(host: Host) -> None:
            try:
                self._ask(host, "stop", state, _LOOK_S, force=force)
            except (NoAnswerError, RefusedError) as error:
                self.refused[host.name] = str(error)

        _each(state.hosts, one)

    def _answers(self, state: State) -> dict[Host, dict[str, Any] | str]:
        """Ask every host that is not known to run the attempt, and of the others those that were asked longest ago."""
        kept = {host: answer for host, answer in self.running.items() if host in state.hosts and state.phase == states.RUNNING}
        others = [host for host in state.hosts if host not in kept]
        asked = _each([*others, *list(kept)[:ASKED_A_LOOK]], lambda host: self._status(host, state))
        answers = {**{host: answer for host, answer in kept.items() if host not in asked}, **asked}
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
            health=str(answer.get("health", seeing.UNKNOWN)),
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
        """Put together what a host says and what its launcher wrote."""
        if record is not None and record.ended is not None:
            return NodeObservation(host.name, seeing.ENDED, record.exit_code, why=record.note)
        if isinstance(answer, str):
            return NodeObservation(host.name, seeing.SILENT, why=answer)
        if answer.get("state") == "running":
            return NodeObservation(host.name, seeing.RUNNING)
        if record is None and state.phase != states.RUNNING:
            return NodeObservation(host.name, seeing.ABSENT, why=self.refused.get(host.name, ""))
        restarted = record is not None and record.boot_id != answer.get("boot_id")
        return NodeObservation(host.name, seeing.ENDED, restarted=restarted, why="its launcher ended without a word")


def _by_our_clock(answer: dict[str, Any]) -> float:
    """Return when a host's health was looked at by this host's clock: theirs may be ahead, or behind."""
    written, now = float(answer.get("written", 0.0)), float(answer.get("now", 0.0))
    return time.time() - (now - written) if written and now else written


def _status(nodes: Sequence[NodeObservation]) -> str:
    found = {node.state for node in nodes}
    if seeing.RUNNING in found:
        return seeing.RUNNING
    return seeing.SILENT if seeing.SILENT in found and not found & {seeing.ENDED} else seeing.ENDED


def _each(hosts: Sequence[Host], one: Callable[[Host], Any]) -> dict[Host, Any]:
    """Return the answers of all hosts, asked at once."""
    with ThreadPoolExecutor(max_workers=min(len(hosts), AT_ONCE) or 1) as pool:
        asked = {host: pool.submit(one, host) for host in hosts}
        return {host: answer.result() for host, answer in asked.items()}
