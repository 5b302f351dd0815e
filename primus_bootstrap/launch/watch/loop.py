"""The watcher's loop: look, decide, write the intent, act. What comes next follows from state.json alone: it may be killed anywhere."""

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
STALE_S = 30.0  # the state is written at least this often, so that people can tell a watcher that is gone
_POLITE_S = 5.0  # a launcher whose lease is gone ends by itself; after this it is killed


@dataclass
class Watcher:
    """One watcher of one job. `watching_since`: time that passed while nobody watched counts against no limit."""

    job: Job
    folder: JobFolder
    target: Target
    every_s: float = TICK_S
    watching_since: float = field(default_factory=time.time)
    stop: threading.Event = field(default_factory=threading.Event)
    leader: Leader = field(init=False)

    def __post_init__(self) -> None:
        """Have a name of its own."""
        self.leader = Leader(self.folder)

    def run(self) -> State:
        """Watch until the job is in a terminal phase, or `stop` is set; return the last state."""
        found = self.folder.state()
        self.leader.wait(found, self.stop)
        if self.stop.is_set():
            return found or states.State(self.job.id)
        state = found or restart_policy.submitted(self.job, time.time())
        state = replace(restart_policy.taken_over(self.job, state, time.time()), watcher=self.leader.name)
        begun = () if found else (Event("submitted"),)
        if state.phase not in states.TERMINAL:
            state = self._save(state, (*begun, Event("watcher_started", state.reason)))
        elif self.folder.requests():
            state = self._save(state, ())
        state = self._asked(state)
        while state.phase not in states.TERMINAL and not self.stop.is_set():
            before, state = state, self._step(state)
            if state.phase == before.phase or time.time() < state.not_before:
                self.stop.wait(self.every_s)
            state = self._asked(state)
        return state

    def _step(self, state: State) -> State:
        """Do what the phase says."""
        self.leader.check()
        if state.phase in (states.PENDING, states.WAITING):
            return self._begin(state) if time.time() >= state.not_before else self._kept(state)
        if state.phase == states.ENDED:
            return self._judge(state)
        if state.phase == states.STARTING:
            self.target.start(state)
        if state.phase == states.STOPPING:
            self.target.stop(state, force=state.revoked and time.time() - state.revoked_at > _POLITE_S)
        seen = self.target.observe(state)
        offset = state.current.steps_offset
        found = progress.look(self.folder.run, self._checkpoints(), steps_offset=offset)
        decision = restart_policy.decide(self.job, state, replace(seen, progress=found), self._moment())
        return self._take(state, decision)

    def _begin(self, state: State) -> State:
        candidates = self.target.candidates()
        if state.attempt:
            self.folder.set_aside(state.attempt)
        offset = progress.steps_size(self.folder.run)
        begun = restart_policy.begin(self.job, state, candidates, self._moment(), steps_offset=offset)
        return self._take(state, begun)

    def _judge(self, state: State) -> State:
        found = diagnosis.diagnose(self.folder.run)
        attempt = self.folder.attempt(state.attempt)
        attempt.mkdir(parents=True, exist_ok=True)
        # failure.json is of the node that failed last, and may know less.
        write_atomic(attempt / "diagnosis.json", json.dumps(found.to_json(), indent=1) + "\n", mode=0o600)
        nodes = node_record.read_all(attempt).values()
        hosts = {record.node: record.host for record in nodes}
        # What this watcher asked for is no reason; what made a launcher end by itself is.
        noted = "" if state.stopping else next((record.note for record in nodes if record.note), "")
        judged = classification.explain(self.job, state, found, hosts, said=node_record.last_error(attempt) or noted)
        decision = restart_policy.judge(self.job, state, judged, time.time())
        for item in decision.state.excluded:
            if item not in state.excluded:
                self.folder.append("verdicts.jsonl", self._verdict(item, state).to_json())
        self.folder.set_aside(state.attempt, [GAUGES])  # a rank that was killed could not say that nothing runs any more
        return self._take(state, decision)

    def _asked(self, state: State) -> State:
        """Act on requests; a request is removed once the state knows of it."""
        requests = self.folder.requests()
        if not requests:
            return state
        decision = restart_policy.ask(self.job, state, requests, time.time())
        state = self._take(state, decision) if decision.events else state
        for name in REQUESTS:
            # Who goes on with a job that is still being cancelled is heard when that is over.
            if name in requests and not (name == RESUME and state.cancel and state.phase not in states.TERMINAL):
                self.folder.answered(name)
        return state

    def _take(self, before: State, decision: Decision) -> State:
        if decision.state == before and not decision.events:
            return self._kept(before)
        state = self._write(decision.state, decision.events)
        if state.revoked and not before.revoked:
            state = replace(state, revoked_at=time.time())  # nobody could read it before it was written
        return state

    def _kept(self, state: State) -> State:
        return self._write(state, ()) if time.time() - state.updated > STALE_S / 3 else state

    def _write(self, state: State, events: tuple[Event, ...]) -> State:
        """Write as long as this watcher leads."""
        self.leader.check()
        return self._save(state, events)

    def _save(self, state: State, events: tuple[Event, ...]) -> State:
        """Write events, then the state: a crash in between repeats an event, and never loses one."""
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

    def _moment(self) -> Clock:
        return Clock(time.time(), self.watching_since)

    def _checkpoints(self) -> Path:
        return Path(self.job.checkpoints) if self.job.checkpoints else self.folder.run / "checkpoints"

    def _verdict(self, item: states.Excluded, state: State) -> verdicts.Verdict:
        return verdicts.Verdict(
            check="workload_node",
            host=item.host,
            verdict=verdicts.UNKNOWN if item.cause in (classification.UNCLEAR, classification.NOT_STARTED) else verdicts.FAIL,
            expected="takes part in the job to its end",
            found=item.cause,
            source=f"primus-watch, job {self.job.id}, attempt {state.attempt}",
            reason=item.reason,
            fix=f"look at {item.host}; the job's log of that attempt is {self.folder.attempt(state.attempt)}",
            started=state.current.started,
            seconds=max(0.0, item.since - state.current.started),
        )


@contextmanager
def ends_on_signals(watcher: Watcher) -> Iterator[None]:
    """End the watcher between two looks on SIGTERM or SIGINT; the job goes on without it."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: watcher.stop.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
