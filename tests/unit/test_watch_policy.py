"""The restart policy: examples, and random failures of hosts in a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from primus_bootstrap.launch.diagnose.diagnosis import Diagnosis
from primus_bootstrap.launch.watch import classification, restart_policy
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.classification import Outcome
from primus_bootstrap.launch.watch.job_folder import RESUME
from primus_bootstrap.launch.watch.job_spec import Direct, Host, Job, Policy
from primus_bootstrap.launch.watch.job_state import Attempt, State
from primus_bootstrap.launch.watch.observation import Candidate, Candidates, NodeObservation, Observation
from primus_bootstrap.launch.watch.progress import Progress
from primus_bootstrap.launch.watch.restart_policy import Clock

HOSTS = tuple(Host(f"h{number}", f"10.0.0.{number}") for number in range(1, 5))
JOB = Job("a-000000", "a", "ada", "direct", 2, ("train",), grace_s=20, direct=Direct(HOSTS[:2], HOSTS[2:]))
TICK_S = 2.0


def running(**changes: Any) -> State:
    """Return the state of a first attempt that runs on two hosts."""
    attempt = Attempt(1, ("h1", "h2"), started=100.0)
    state = State("a-000000", phase=states.RUNNING, attempt=1, hosts=HOSTS[:2], attempts=(attempt,), since=100.0)
    return replace(state, **changes)


def seen(*nodes: tuple[str, int | None], step: int | None = None) -> Observation:
    """Return an observation of two hosts: a state and an exit code each."""
    found = tuple(NodeObservation(f"h{number}", state, code) for number, (state, code) in enumerate(nodes, 1))
    status = observations.RUNNING if any(node.state == observations.RUNNING for node in found) else observations.ENDED
    return Observation(status, found, progress=Progress(step, step))


def over(**changes: Any) -> State:
    """Return the state of an attempt that has ended and is not classified."""
    return running(phase=states.ENDED, **changes)


def test_a_silent_node_is_unknown_before_it_is_lost() -> None:
    """The attempt is stopped after lost_after_s."""
    state = running()
    silent = seen((observations.SILENT, None), (observations.RUNNING, None))
    first = restart_policy.evaluate(JOB, state, silent, Clock(200))
    before = restart_policy.evaluate(JOB, first.state, silent, Clock(219.9))
    after = restart_policy.evaluate(JOB, before.state, silent, Clock(220))

    assert [event.kind for event in first.events] == ["node_unknown"]
    assert before.state.phase == states.RUNNING
    assert (after.state.phase, after.state.stopping, after.state.revoked) == (states.STOPPING, "lost", True)


@pytest.mark.parametrize(
    ("codes", "limit"),
    [((1,), 10), ((0, 1), 10), ((0,), 50), ((75,), 50), ((0, 75), 50)],
    ids=["failed", "one failed", "done", "checkpointed", "both"],
)
def test_the_other_nodes_get_longer_to_end_after_a_good_end(codes: tuple[int, ...], limit: int) -> None:
    """They may still write a checkpoint: grace_s (20) and 30 s instead of settle_s (10)."""
    ended = [(observations.ENDED, code) for code in codes]
    look = seen(*ended, (observations.RUNNING, None))
    state = restart_policy.evaluate(JOB, running(hosts=HOSTS[:3]), look, Clock(200)).state

    assert restart_policy.evaluate(JOB, state, look, Clock(200 + limit - 0.1)).state.phase == states.RUNNING
    assert restart_policy.evaluate(JOB, state, look, Clock(200 + limit)).state.stopping == classification.STOP_FAILED


def test_a_suspended_attempt_does_not_hang() -> None:
    """Slurm suspends jobs for others. The time limit starts again afterwards."""
    state = running(attempts=(Attempt(1, ("h1", "h2"), first_step=1, first_step_at=110.0, last_step=5),), step=5, step_at=120.0)
    look = seen((observations.RUNNING, None), (observations.RUNNING, None), step=5)
    paused = restart_policy.evaluate(JOB, state, replace(look, paused=True), Clock(4000)).state

    assert paused.phase == states.RUNNING
    assert restart_policy.evaluate(JOB, paused, look, Clock(4001)).state.phase == states.RUNNING
    assert restart_policy.evaluate(JOB, paused, look, Clock(9000)).state.stopping == "no_progress"


def test_the_first_step_is_reported_when_it_is_known() -> None:
    """The gauge is visible at once, but has only the newest step. The time limit for the first step ends with it."""
    nodes = seen((observations.RUNNING, None), (observations.RUNNING, None))
    gauge = restart_policy.evaluate(JOB, running(), replace(nodes, progress=Progress(None, 212)), Clock(200))
    lines = restart_policy.evaluate(JOB, gauge.state, replace(nodes, progress=Progress(201, 212)), Clock(201))

    assert ([event.kind for event in gauge.events], gauge.state.current.first_step_at, gauge.state.step) == ([], 200, 212)
    assert [(event.kind, event.step) for event in lines.events] == [("first_step", 201)]
    assert (lines.state.current.first_step, lines.state.current.last_step, lines.state.current.first_step_at) == (201, 212, 200)


def test_a_silent_node_is_not_lost_while_the_job_makes_steps() -> None:
    """All ranks take part in a step."""
    state = running()
    for step in range(20):
        now = 200 + 5 * step
        answer = seen((observations.SILENT, None), (observations.RUNNING, None), step=step)
        state = restart_policy.evaluate(JOB, state, answer, Clock(now)).state

    assert state.phase == states.RUNNING


def test_the_next_attempt_waits_for_the_lease_of_a_lost_node() -> None:
    """Its launcher may still run until the lease expires."""
    state = running(phase=states.STOPPING, stopping="lost", revoked=True, revoked_at=220.0, unknown=(("h1", 200.0),))
    look = seen((observations.SILENT, None), (observations.ENDED, 79))
    limit = 220 + JOB.policy.lease_s + restart_policy.FENCE_S

    assert restart_policy.evaluate(JOB, state, look, Clock(limit - 0.1)).state.phase == states.STOPPING
    assert restart_policy.evaluate(JOB, state, look, Clock(limit)).state.phase == states.ENDED
    assert restart_policy.evaluate(JOB, state, look, Clock(limit)).state.lost == ("h1",)


def test_a_node_that_cannot_be_stopped_is_lost_after_a_wait() -> None:
    """A process that hangs in the kernel survives SIGKILL."""
    state = running(phase=states.STOPPING, stopping="no_progress", revoked=True, revoked_at=220.0)
    look = seen((observations.RUNNING, None), (observations.ENDED, 79))
    limit = 220 + JOB.policy.lease_s + restart_policy.FENCE_S + restart_policy.UNSTOPPABLE_S
    after = restart_policy.evaluate(JOB, state, look, Clock(limit))

    assert restart_policy.evaluate(JOB, state, look, Clock(limit - 0.1)).state.phase == states.STOPPING
    assert (after.state.phase, after.state.lost) == (states.ENDED, ("h1",))
    assert [(event.host, event.reason) for event in after.events] == [("h1", "cannot be stopped")]


def test_stopping_does_not_shorten_the_time_before_a_node_is_lost() -> None:
    """It became silent while the attempt was being stopped."""
    state = running(phase=states.STOPPING, stopping="failed", revoked=True, revoked_at=100.0, unknown=(("h1", 118.0),))
    look = seen((observations.SILENT, None), (observations.ENDED, 1))

    assert restart_policy.evaluate(JOB, state, look, Clock(137.9)).state.phase == states.STOPPING
    assert restart_policy.evaluate(JOB, state, look, Clock(138.0)).state.phase == states.ENDED


def test_time_without_a_watcher_does_not_count_against_limits() -> None:
    """After an hour without a watcher the job gets its time again."""
    state = running(attempts=(Attempt(1, ("h1", "h2"), first_step=1, first_step_at=110.0, last_step=5),), step=5, step_at=120.0)
    look = seen((observations.RUNNING, None), (observations.RUNNING, None), step=5)

    assert restart_policy.evaluate(JOB, state, look, Clock(4000, watching_since=3990)).state.phase == states.RUNNING
    assert restart_policy.evaluate(JOB, state, look, Clock(4000)).state.stopping == "no_progress"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([0, 75], 75),
        ([75, 75], 75),
        ([1, 76], 76),
        ([79, 1], 1),
        ([79, 137], 137),
        ([79, 79], 79),
        ([None, None], None),
        ([0, None], None),
        ([75, None], 75),
        ([143, 1], 1),
        ([143, 79], 143),
        ([143, 0], 143),
        ([143, None], None),
        ([143, None, 1], 1),
    ],
)
def test_the_most_specific_exit_code_counts(codes: list[int | None], expected: int | None) -> None:
    """The rank that computed NaN counts, not those that lost their connection to it or were stopped."""
    assert classification.deciding_code(codes) == expected


def test_the_retry_budget_ends_a_job_without_progress() -> None:
    """It fails after three restarts."""
    state, pauses = over(), []
    for _ in range(3):
        state = restart_policy.conclude(JOB, state, Outcome(classification.OTHER, "crash", "a crash"), 1000.0).state
        pauses.append(state.not_before - 1000.0)
        state = replace(state, phase=states.ENDED, attempts=(*state.attempts, Attempt(state.attempt + 1)), attempt=state.attempt + 1)
    state = restart_policy.conclude(JOB, state, Outcome(classification.OTHER, "crash", "a crash"), 1000.0).state

    assert pauses == [0, 10, 30]
    assert state.phase == states.FAILED
    assert state.reason == "3 restarts without progress at all; the last attempt: a crash"


def test_a_new_step_restores_the_retry_budget() -> None:
    """Ten kills in a row do not end a job whose attempts make new steps."""
    state = running()
    for kill in range(10):
        look = seen((observations.RUNNING, None), (observations.RUNNING, None), step=kill + 1)
        state = restart_policy.evaluate(JOB, state, look, Clock(100.0 + kill)).state
        ended = replace(state, phase=states.ENDED)
        state = restart_policy.conclude(JOB, ended, Outcome(classification.OTHER, "crash", "a crash"), 100.0 + kill).state
        assert state.phase == states.WAITING
        state = replace(state, phase=states.RUNNING, attempts=(*state.attempts, Attempt(kill + 2, ("h1", "h2"))), attempt=kill + 2)

    assert (state.restarts, state.restarts_without_progress) == (10, 1)


def test_a_failure_of_the_job_that_repeats_ends_it() -> None:
    """NaN twice at the same step. At another step the job restarts."""
    nan = Outcome(classification.OWN, "not_finite", "the loss was not finite")
    first = Attempt(1, last_step=6, first_step=1)
    once = restart_policy.conclude(JOB, over(attempts=(first,), best_step=6), nan, 100.0).state
    same = replace(once, phase=states.ENDED, attempt=2, attempts=(*once.attempts, Attempt(2, last_step=6, first_step=5)))
    other = replace(once, phase=states.ENDED, attempt=2, attempts=(*once.attempts, Attempt(2, last_step=9, first_step=5)))

    assert once.phase == states.WAITING
    reason = restart_policy.conclude(JOB, same, nan, 100.0).state.reason
    assert reason == "ended twice after step 6 for the same reason: the loss was not finite"
    assert restart_policy.conclude(JOB, other, nan, 100.0).state.phase == states.WAITING


def test_a_checkpointed_stop_is_free_if_the_attempt_made_a_step() -> None:
    """Exit code 75 before the first step counts against the retry budget."""
    early = Outcome(classification.UNFINISHED, "unfinished", "stopped early")
    stepped = restart_policy.conclude(JOB, over(attempts=(Attempt(1, first_step=1, last_step=4),)), early, 100.0).state
    idle = restart_policy.conclude(JOB, over(), early, 100.0).state

    assert (stepped.not_before, stepped.restarts_without_progress) == (100.0, 0)
    assert idle.restarts_without_progress == 1


def test_stops_from_outside_have_a_budget_of_their_own() -> None:
    """SIGTERM from an administrator is not a failure. A new step resets the counter."""
    stop = Outcome(classification.UNFINISHED, classification.FROM_OUTSIDE, "stopped from outside")
    state, counts = over(attempts=(Attempt(1, first_step=1, last_step=4),), best_step=4), []
    forward = replace(running(stops=3), best_step=4)
    for _ in range(7):
        state = restart_policy.conclude(JOB, replace(state, phase=states.ENDED), stop, 1000.0).state
        counts.append((state.stops, state.restarts_without_progress, state.not_before - 1000.0))
    resumed = restart_policy.apply_requests(JOB, state, frozenset({RESUME}), 2000.0).state

    assert counts == [(1, 0, 0), (2, 0, 10), (3, 0, 30), (3, 1, 60), (3, 2, 120), (3, 3, 300), (3, 3, 300)]
    assert state.phase == states.FAILED
    assert state.reason == "3 restarts without progress since step 4; the last attempt: stopped from outside"
    assert (
        restart_policy.evaluate(
            JOB, forward, seen((observations.RUNNING, None), (observations.RUNNING, None), step=5), Clock(101.0)
        ).state.stops
        == 0
    )
    assert resumed.stops == 0


def test_preemptions_before_the_first_step_have_a_limit() -> None:
    """A preemption after a step is free. A queue that evicts a job at every start must end it eventually."""
    taken = Outcome(classification.UNFINISHED, classification.PREEMPTED, "held back before the first step")
    stepped = restart_policy.conclude(JOB, over(attempts=(Attempt(1, first_step=1, last_step=4),)), taken, 1000.0).state
    state, counts = over(), []
    for _ in range(7):
        state = restart_policy.conclude(JOB, replace(state, phase=states.ENDED), taken, 1000.0).state
        counts.append((state.stops, state.restarts_without_progress))

    assert (stepped.not_before, stepped.stops, stepped.restarts_without_progress) == (1000.0, 0, 0)
    assert counts == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (3, 3)]
    assert state.phase == states.FAILED


def test_a_cancelled_job_gets_its_grace_period_before_its_lease_is_revoked() -> None:
    """It writes a checkpoint first."""
    asked = restart_policy.apply_requests(JOB, running(), frozenset({"cancel"}), 200.0).state
    look = seen((observations.RUNNING, None), (observations.RUNNING, None))
    limit = 200 + JOB.grace_s + restart_policy.AFTER_GRACE_S

    assert (asked.phase, asked.revoked) == (states.STOPPING, False)
    assert not restart_policy.evaluate(JOB, asked, look, Clock(limit - 1)).state.revoked
    assert restart_policy.evaluate(JOB, asked, look, Clock(limit)).state.revoked


def test_a_failed_job_continues_on_request() -> None:
    """The counters start again. A job that is done stays done."""
    failed = running(phase=states.FAILED, restarts=9, restarts_without_progress=4, cancel=True)
    again = restart_policy.apply_requests(JOB, failed, frozenset({"resume"}), 300.0).state
    done = running(phase=states.DONE)

    assert (again.phase, again.restarts, again.restarts_without_progress, again.cancel) == (states.WAITING, 0, 0, False)
    assert restart_policy.apply_requests(JOB, done, frozenset({"resume"}), 300.0).state == done


def test_waiting_for_hosts_has_a_limit() -> None:
    """The reason names each host."""
    nobody = Candidates(tuple(Candidate(host, answers=False, why="no route") for host in HOSTS))
    waiting = restart_policy.begin_attempt(JOB, State("a-000000"), nobody, Clock(100)).state
    later = restart_policy.begin_attempt(JOB, waiting, nobody, Clock(100 + JOB.policy.hosts_timeout_s + 1)).state

    assert waiting.phase == states.WAITING
    assert waiting.reason.startswith("2 hosts are needed and 0 are available: h1 does not answer (no route); h2")
    assert later.phase == states.FAILED


@dataclass
class Launcher:
    """The launcher of an attempt on one host. It reads its lease every second."""

    attempt: int
    read_at: float
    ended: int | None = None


@dataclass
class World:
    """Hosts that fail, and their launchers. Time passes in ticks."""

    now: float = 1000.0
    up: dict[str, bool] = field(default_factory=lambda: {host.name: True for host in HOSTS})
    ssh: dict[str, bool] = field(default_factory=lambda: {host.name: True for host in HOSTS})
    storage: dict[str, bool] = field(default_factory=lambda: {host.name: True for host in HOSTS})
    launchers: dict[tuple[str, int], Launcher] = field(default_factory=dict)
    step: int = 0
    made: dict[int, int] = field(default_factory=dict)

    def alive(self, attempt: int | None = None) -> list[tuple[str, int]]:
        """Return the running launchers."""
        return [key for key, item in self.launchers.items() if item.ended is None and attempt in (None, key[1])]

    def tick(self, state: State, *, goal: int) -> None:
        """Advance one tick: launchers read their leases, and train if all of them run."""
        self.now += TICK_S
        for (host, number), item in self.launchers.items():
            if item.ended is not None:
                continue
            if self.storage[host]:
                item.read_at = self.now
                if state.attempt != number or state.revoked:
                    item.ended = 79
            elif self.now - item.read_at > JOB.policy.lease_s:
                item.ended = 79
        mine = self.alive(state.attempt)
        if state.phase == states.RUNNING and len(mine) == JOB.nodes and all(self.storage[host] and self.up[host] for host, _ in mine):
            self.step += 1
            self.made.setdefault(state.attempt, self.step)
            if self.step >= goal:
                for key in mine:
                    self.launchers[key].ended = 0

    def candidates(self) -> Candidates:
        """Return the hosts that SSH reaches."""
        spares = {host.name for host in HOSTS[2:]}
        return Candidates(
            tuple(Candidate(host, answers=self.up[host.name] and self.ssh[host.name], spare=host.name in spares) for host in HOSTS)
        )

    def start(self, state: State) -> None:
        """Start the launchers on reachable hosts."""
        for host in state.hosts:
            key = (host.name, state.attempt)
            if self.up[host.name] and self.ssh[host.name] and self.storage[host.name] and key not in self.launchers:
                self.launchers[key] = Launcher(state.attempt, self.now)

    def observe(self, state: State) -> Observation:
        """Return the observation by SSH and records."""
        nodes = []
        for host in state.hosts:
            item = self.launchers.get((host.name, state.attempt))
            if item is not None and item.ended is not None and self.storage[host.name]:
                nodes.append(NodeObservation(host.name, observations.ENDED, item.ended if item.ended >= 0 else None))
            elif not (self.up[host.name] and self.ssh[host.name]):
                nodes.append(NodeObservation(host.name, observations.SILENT))
            elif item is None:
                nodes.append(NodeObservation(host.name, observations.ABSENT if state.phase != states.RUNNING else observations.ENDED))
            else:
                nodes.append(NodeObservation(host.name, observations.RUNNING if item.ended is None else observations.ENDED))
        found = {node.state for node in nodes}
        status = observations.RUNNING if observations.RUNNING in found else observations.ENDED
        first = self.made.get(state.attempt)
        return Observation(status, tuple(nodes), progress=Progress(first, self.step if first is not None else None))

    def break_it(self, what: str, host: str) -> None:
        """Cause a fault, or repair a host."""
        if what == "mend":
            self.up[host] = self.ssh[host] = self.storage[host] = True
        elif what == "lose":
            self.up[host] = False
            for key, item in self.launchers.items():
                if key[0] == host and item.ended is None:
                    item.ended = -1  # Lost without a message.
        elif what == "cut":
            self.ssh[host] = False
        elif what == "cut storage":
            self.storage[host] = False
        else:
            for key in self.alive():
                if key[0] == host:
                    self.launchers[key].ended = 137


def turn(world: World, state: State, requests: frozenset[str] = frozenset()) -> State:
    """Do one iteration of the watcher's loop."""
    if state.phase in (states.PENDING, states.WAITING):
        if world.now >= state.not_before:
            begun = restart_policy.begin_attempt(JOB, state, world.candidates(), Clock(world.now)).state
            if begun.attempt != state.attempt:
                assert world.alive() == [], "two attempts at once"
            state = begun
    elif state.phase == states.ENDED:
        judged = classification.classify(JOB, state, Diagnosis("", 0), {})
        state = restart_policy.conclude(JOB, state, judged, world.now).state
    elif state.phase not in states.TERMINAL:
        if state.phase == states.STARTING:
            world.start(state)
        state = restart_policy.evaluate(JOB, state, world.observe(state), Clock(world.now)).state
    return restart_policy.apply_requests(JOB, state, requests, world.now).state


FAULTS = some.lists(
    some.tuples(
        some.sampled_from(["lose", "cut", "cut storage", "kill", "mend"]),
        some.sampled_from([host.name for host in HOSTS]),
        some.integers(1, 30),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(FAULTS, some.booleans())
def test_two_attempts_never_run_at_once_and_the_job_ends(faults: list[tuple[str, str, int]], through_files: bool) -> None:  # noqa: FBT001
    """With any faults and repairs, also if the watcher is killed and reads its state again."""
    world, state = World(), State("a-000000")
    for what, host, rounds in faults:
        world.break_it(what, host)
        for _ in range(rounds):
            state = turn(world, state)
            state = states.from_json(state.to_json()) if through_files else state
            attempts = {number for _, number in world.alive()}
            assert len(attempts) <= 1
            assert state.restarts_without_progress <= JOB.policy.max_restarts_without_progress
            world.tick(state, goal=60)
    for host in world.up:
        world.break_it("mend", host)
    for _ in range(600):
        state = turn(world, state)
        world.tick(state, goal=60)

    assert state.phase in states.TERMINAL
    assert state.phase == states.DONE or "without progress" in state.reason


@settings(max_examples=100, deadline=None)
@given(FAULTS, some.integers(0, 100))
def test_a_cancelled_job_ends_whatever_fails(faults: list[tuple[str, str, int]], at: int) -> None:
    """No launcher is left."""
    world, state, rounds = World(), State("a-000000"), 0
    for what, host, pause in [*faults, ("cut", "h1", 100)]:
        world.break_it(what, host)
        for _ in range(pause):
            rounds += 1
            state = turn(world, state, frozenset({"cancel"}) if rounds >= at else frozenset())
            world.tick(state, goal=10**6)
    for _ in range(100):
        state = turn(world, state, frozenset({"cancel"}))
        world.tick(state, goal=10**6)

    assert state.phase in states.TERMINAL
    assert world.alive() == []


@settings(max_examples=200, deadline=None)
@given(some.builds(Policy, backoff_s=some.just((0, 10))), some.lists(some.floats(0, 1e6), min_size=3, max_size=3))
def test_a_state_is_read_as_it_was_written(found: Policy, times: list[float]) -> None:
    """For random states."""
    state = running(
        excluded=(states.Excluded("h9", times[0], "gpu_lost", "a reason", hardware=True),),
        unknown=(("h1", times[1]),),
        lost=("h2",),
        step=found.lease_s,
        since=times[2],
    )

    assert states.from_json(state.to_json()) == state
