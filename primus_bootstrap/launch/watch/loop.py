"""The watcher's loop: observe, decide, write state.json, act. It may be killed at any time: state.json alone decides what comes next."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core import verdicts
from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.launch.diagnose import diagnosis
from primus_bootstrap.launch.watch import classification, node_record, progress, restart_policy
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch.job_folder import GAUGES, REQUESTS, RESUME
from primus_bootstrap.launch.watch.leader import Leader
from primus_bootstrap.launch.watch.restart_policy import Clock, Decision, Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.targets import Target

log = logging.getLogger(__name__)

TICK_S = 2.0
STALE_S = 30.0  # the state is written at least this often; an older state means that the watcher does not run
_SELF_STOP_S = 5.0  # a launcher without a lease ends by itself; after this time it is killed


@dataclass
class Watcher:
    """The watcher of one job. Time before `watching_since` does not count against any limit."""

    job: Job
    folder: JobFolder
    target: Target
    every_s: float = TICK_S
    watching_since: float = field(default_factory=time.time)
    stop: threading.Event = field(default_factory=threading.Event)
    leader: Leader = field(init=False)

    def __post_init__(self) -> None:
        """Create this watcher's claim to the job."""
        self.leader = Leader(self.folder)

    def run(self) -> State:
        """Watch until the job is in a terminal phase, or `stop` is set; return the last state."""
        found = self.folder.state()
        self.leader.wait(found, self.stop)
        if self.stop.is_set():
            return found or states.State(self.job.id)
        state = found or restart_policy.initial_state(self.job, time.time())
        state = replace(restart_policy.take_over(self.job, state, time.time()), watcher=self.leader.name)
        begun = () if found else (Event("submitted"),)
        if state.phase not in states.TERMINAL:
            state = self._save(state, (*begun, Event("watcher_started", state.reason)))
        elif self.folder.requests():
            state = self._save(state, ())
        state = self._apply_requests(state)
        while state.phase not in states.TERMINAL and not self.stop.is_set():
            before, state = state, self._step(state)
            if state.phase == before.phase or time.time() < state.not_before:
                self.stop.wait(self.every_s)
            state = self._apply_requests(state)
        return state

    def _step(self, state: State) -> State:
        """Do what the phase requires."""
        self.leader.check()
        if state.phase in (states.PENDING, states.WAITING):
            return self._begin_attempt(state) if time.time() >= state.not_before else self._refresh(state)
        if state.phase == states.ENDED:
            return self._conclude(state)
        if state.phase == states.STARTING:
            self.target.start(state)
        if state.phase == states.STOPPING:
            self.target.stop(state, force=state.revoked and time.time() - state.revoked_at > _SELF_STOP_S)
        observation = self.target.observe(state)
        offset = state.current.steps_offset
        found = progress.read_progress(self.folder.run, self._checkpoints(), steps_offset=offset)
        decision = restart_policy.evaluate(self.job, state, replace(observation, progress=found), self._clock())
        return self._take(state, decision)

    def _begin_attempt(self, state: State) -> State:
        candidates = self.target.candidates()
        if state.attempt:
            self.folder.set_aside(state.attempt)
        offset = progress.steps_size(self.folder.run)
        begun = restart_policy.begin_attempt(self.job, state, candidates, self._clock(), steps_offset=offset)
        return self._take(state, begun)

    def _conclude(self, state: State) -> State:
        found = diagnosis.diagnose(self.folder.run)
        attempt = self.folder.attempt(state.attempt)
        attempt.mkdir(parents=True, exist_ok=True)
        # failure.json comes from the node that failed last, and may contain less.
        write_atomic(attempt / "diagnosis.json", json.dumps(found.to_json(), indent=1) + "\n", mode=0o600)
        nodes = node_record.read_all(attempt).values()
        hosts = {record.node: record.host for record in nodes}
        # A stop by this watcher is not the cause; a launcher that ended by itself may note it.
        noted = "" if state.stopping else next((record.note for record in nodes if record.note), "")
        printed = node_record.last_error(attempt)
        error = printed if printed.what else node_record.LauncherError(noted)
        outcome = classification.classify(self.job, state, found, hosts, launcher_error=error)
        decision = restart_policy.conclude(self.job, state, outcome, time.time())
        for item in decision.state.excluded:
            if item not in state.excluded:
                self.folder.append("verdicts.jsonl", self._verdict(item, state).to_json())
        self.folder.set_aside(state.attempt, [GAUGES])  # a killed rank could not reset its gauges
        return self._take(state, decision)

    def _apply_requests(self, state: State) -> State:
        """Apply the user's requests; a request is removed once the state contains it."""
        requests = self.folder.requests()
        if not requests:
            return state
        decision = restart_policy.apply_requests(self.job, state, requests, time.time())
        state = self._take(state, decision) if decision.events else state
        for name in REQUESTS:
            # A resume during a cancellation is applied after the cancellation.
            if name in requests and not (name == RESUME and state.cancel and state.phase not in states.TERMINAL):
                self.folder.remove_request(name)
        return state

    def _take(self, before: State, decision: Decision) -> State:
        if decision.state == before and not decision.events:
            return self._refresh(before)
        state = self._write(decision.state, decision.events)
        if state.revoked and not before.revoked:
            state = replace(state, revoked_at=time.time())  # nodes can read it only from now on
        return state

    def _refresh(self, state: State) -> State:
        return self._write(state, ()) if time.time() - state.updated > STALE_S / 3 else state

    def _write(self, state: State, events: tuple[Event, ...]) -> State:
        """Write the state, if this watcher still leads the job."""
        self.leader.check()
        return self._save(state, events)

    def _save(self, state: State, events: tuple[Event, ...]) -> State:
        """Write the events, then the state: a crash in between may repeat an event, but never loses one."""
        now = time.time()
        for event in events:
            record = {
                "time": now,
                "kind": event.kind,
                "attempt": state.attempt,
                "host": event.host,
                "reason": event.reason,
                "step": event.step,
            }
            self.folder.append("events.jsonl", record)
            log.info("%s: %s", event.kind, " ".join(part for part in (event.host, event.reason) if part))
        state = replace(state, updated=now)
        states.save(self.folder.state_file, state)
        return state

    def _clock(self) -> Clock:
        return Clock(time.time(), self.watching_since)

    def _checkpoints(self) -> Path:
        return Path(self.job.checkpoints) if self.job.checkpoints else self.folder.run / "checkpoints"

    def _verdict(self, item: states.Excluded, state: State) -> verdicts.Verdict:
        return verdicts.Verdict(
            check="workload_node",
            host=item.host,
            verdict=verdicts.UNKNOWN if item.cause in (classification.UNCLEAR, classification.NOT_STARTED) else verdicts.FAIL,
            expected="takes part in the job until its end",
            found=item.cause,
            source=f"primus-watch, job {self.job.id}, attempt {state.attempt}",
            reason=item.reason,
            fix=f"check {item.host}; the logs of that attempt are in {self.folder.attempt(state.attempt)}",
            started=state.current.started,
            seconds=max(0.0, item.since - state.current.started),
        )


@contextmanager
def ends_on_signals(watcher: Watcher) -> Iterator[None]:
    """Stop the watcher on SIGTERM or SIGINT after the current step; the job continues without it."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: watcher.stop.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
