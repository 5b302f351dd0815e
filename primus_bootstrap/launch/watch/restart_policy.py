"""The restart policy: pure functions from (job, state, observation, time) to the next state.

The phase decides what the loop does next:
    pending, waiting: choose hosts   starting: start   running: observe   stopping: stop   ended: find the cause
    done, failed, cancelled: nothing
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import classification, not_started
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.host_choice import choose
from primus_bootstrap.launch.watch.job_folder import CANCEL, RESUME
from primus_bootstrap.launch.watch.job_state import Attempt, Excluded, State

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.classification import Outcome
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.observation import Candidates, NodeObservation, Observation

FENCE_S = 5.0  # a node reads its lease every second, and then needs time to end its launcher
UNSTOPPABLE_S = 60.0  # a node that still reports a running launcher after this time is lost
LEFT_OUT = "left_out"  # cause of the exclusions that the submission requested
START_S = 60.0  # to start on all hosts over SSH, or to submit to Slurm or Kubernetes
AFTER_GRACE_S = 30.0  # in addition to the grace period of the ranks
_NO_ANSWER = "did not answer for {} s"


@dataclass(frozen=True)
class Event:
    """One line of events.jsonl, without its time and attempt."""

    kind: str
    reason: str = ""
    host: str = ""
    step: int | None = None


@dataclass(frozen=True)
class Clock:
    """The time, and when this watcher started, in seconds since the epoch. Time without a watcher does not count against any limit."""

    now: float
    watching_since: float = 0.0


@dataclass(frozen=True)
class Decision:
    """The next state, and the events on the way to it."""

    state: State
    events: tuple[Event, ...] = ()


def initial_state(job: Job, now: float) -> State:
    """Return the first state of a job. It excludes the hosts that were out of service at submission."""
    excluded = tuple(Excluded(one.host, now, LEFT_OUT, one.reason) for one in job.left_out)
    return State(job.id, since=now, reason="submitted", excluded=excluded)


def take_over(job: Job, state: State, now: float) -> State:
    """Return the state for a watcher that continues it: times may come from another host's clock, which may be ahead or behind.

    The fence starts again, because it is unknown when nodes could read that their lease was revoked.
    """
    return replace(
        state,
        unknown=(),
        placed=(),
        failing_since=0.0,
        revoked_at=now if state.revoked else state.revoked_at,
        not_before=min(state.not_before, now + max(job.policy.backoff_s)),
        deadline=min(state.deadline, now + job.grace_s + AFTER_GRACE_S),
        step_at=None if state.step_at is None else min(state.step_at, now),
        since=min(state.since, now),
    )


def apply_requests(job: Job, state: State, requests: frozenset[str], now: float) -> Decision:
    """Apply the user's requests."""
    events: list[Event] = []
    if RESUME in requests and state.phase in (states.FAILED, states.CANCELLED):
        fresh = replace(state, cancel=False, fix="", restarts=0, restarts_without_progress=0, stops=0, not_before=now)
        state = _enter(fresh, states.WAITING, "resumed on request", now)
        events.append(Event("resumed", state.reason))
    if CANCEL in requests and not state.cancel and state.phase not in states.TERMINAL:
        events.append(Event("requested", "cancel"))
        state = replace(state, cancel=True)
        if state.phase in (states.PENDING, states.WAITING):
            state = _enter(state, states.CANCELLED, "cancelled on request", now)
            events.append(Event("cancelled", state.reason))
        elif state.phase in (states.STARTING, states.RUNNING):
            deadline = now + job.grace_s + AFTER_GRACE_S
            state, more = _stop(state, classification.STOP_CANCEL, "cancelled on request", now, deadline=deadline)
            events += more
    return Decision(state, tuple(events))


def begin_attempt(job: Job, state: State, candidates: Candidates, clock: Clock, *, steps_offset: int = 0) -> Decision:
    """Choose hosts and begin the next attempt, or continue to wait for hosts."""
    now = clock.now
    choice = choose(job, state, candidates)
    if choice.why:
        limit = max(state.since, state.not_before, clock.watching_since) + job.policy.hosts_timeout_s
        if now > limit:
            why = f"waited {job.policy.hosts_timeout_s} s for hosts: {choice.why}"
            return _fail(job, state, why, f"repair hosts or add some, then: {classification.resume_command(job)}", now)
        if state.phase == states.WAITING and state.reason == choice.why:
            return Decision(state)
        waiting = replace(state, phase=states.WAITING, reason=choice.why, since=state.since if state.phase == states.WAITING else now)
        return Decision(waiting, (Event("waiting_for_hosts", choice.why),))
    number = state.attempt + 1
    names = tuple(host.name for host in choice.hosts)
    where = f" on {', '.join(names)}" if names else ""
    begun = replace(
        state,
        attempt=number,
        hosts=choice.hosts,
        spares=choice.spares,
        excluded=choice.excluded,
        attempts=(*state.attempts, Attempt(number, names, started=now, steps_offset=steps_offset)),
        revoked=False, revoked_at=0.0, target_id="", stopping="", deadline=0.0, verdict="", failing_since=0.0,
        unknown=(), lost=(), unclear=(), absent=(), placed=(), step=None, step_at=None,
    )  # fmt: skip
    events = [Event("node_returned", "there are not enough other hosts, and no check excludes it", host) for host in choice.returned]
    return Decision(
        _enter(begun, states.STARTING, f"attempt {number}{where}", now), (*events, Event("attempt_starting", f"attempt {number}{where}"))
    )


def evaluate(job: Job, state: State, observation: Observation, clock: Clock) -> Decision:
    """Return what follows from an observation of an attempt that is starting, running or being stopped."""
    now = clock.now
    events: list[Event] = []
    state = _adopt(state, observation)
    state, more = _record_answers(state, observation, now)
    events += more
    state = replace(state, placed=not_started.placed(state, observation, now))
    observation = _end_silent_launchers(job, state, observation, now)
    state, more = _record_progress(state, observation, now)
    events += more
    lost = _lost(job, state, observation, now)
    if _has_ended(state, observation):
        state, more = _end(state, observation, now, lost=())
    elif state.phase == states.STOPPING:
        state, more = _stopping(job, state, observation, now, lost)
    else:
        state, more = _ongoing(job, state, observation, clock, lost)
    return Decision(state, (*events, *more))


def conclude(job: Job, state: State, outcome: Outcome, now: float) -> Decision:
    """Decide what follows an attempt that has ended."""
    state = _update_attempt(state, cause=outcome.cause, reason=outcome.reason)
    events = [Event("attempt_ended", outcome.reason, step=state.step)]
    if outcome.kind == classification.DONE:
        return Decision(_enter(state, states.DONE, outcome.reason, now), (*events, Event("done", outcome.reason, step=state.step)))
    if outcome.kind == classification.CANCELLED:
        ended = replace(_enter(state, states.CANCELLED, outcome.reason, now), fix=outcome.fix)
        return Decision(ended, (*events, Event("cancelled", outcome.reason, step=state.step)))
    known = {item.host for item in state.excluded}
    new = [Excluded(host, now, outcome.cause, outcome.reason, outcome.hardware) for host in outcome.hosts if host not in known]
    state = replace(state, excluded=(*state.excluded, *new))
    events += [Event("node_excluded", item.reason, item.host) for item in new]
    decision = _restart_or_fail(job, state, outcome, now)
    return Decision(decision.state, (*events, *decision.events))


def _restart_or_fail(job: Job, state: State, outcome: Outcome, now: float) -> Decision:
    """Restart the job, or let it fail with a reason."""
    if outcome.kind == classification.OWN and _repeated(state):
        at = "before the first step" if state.current.last_step is None else f"after step {state.current.last_step}"
        return _fail(job, state, f"ended twice {at} for the same reason: {outcome.reason}", outcome.fix, now)
    # Continuing from a checkpoint does not count against the retry budget, if the attempt made at least one step.
    stepped = state.current.last_step is not None
    outside = outcome.cause == classification.FROM_OUTSIDE
    free = outcome.kind == classification.UNFINISHED and not outside and stepped
    policy = job.policy
    # Stops from outside, and preemptions before the first step, do not count either, up to max_restarts_without_progress in a row. More
    # of them have a systematic cause: a queue, for example, evicts a job one of whose pods never starts.
    uncounted = (
        outside or (outcome.cause == classification.PREEMPTED and not stepped)
    ) and state.stops < policy.max_restarts_without_progress
    stops = state.stops + (1 if uncounted else 0)
    spent = state.restarts_without_progress + (0 if free or uncounted else 1)
    if spent > policy.max_restarts_without_progress:
        since = "at all" if state.best_step is None else f"since step {state.best_step}"
        why = f"{policy.max_restarts_without_progress} restarts without progress {since}; the last attempt: {outcome.reason}"
        return _fail(job, state, why, outcome.fix, now)
    if policy.max_restarts and state.restarts >= policy.max_restarts:
        return _fail(job, state, f"{policy.max_restarts} restarts in all; the last attempt: {outcome.reason}", outcome.fix, now)
    pause = 0 if free else policy.backoff_s[min(spent + stops, len(policy.backoff_s)) - 1]
    counted = replace(state, restarts=state.restarts + 1, restarts_without_progress=spent, stops=stops)
    again = replace(counted, not_before=now + pause, fix=outcome.fix)
    text = f"restart{f' in {pause} s' if pause else ''}: {outcome.reason}"
    return Decision(_enter(again, states.WAITING, text, now), (Event("restart", text),))


def _repeated(state: State) -> bool:
    if len(state.attempts) < 2:
        return False
    before, last = state.attempts[-2:]
    return (before.cause, before.last_step) == (last.cause, last.last_step)


def _fail(job: Job, state: State, why: str, fix: str, now: float) -> Decision:
    fix = fix or f"read the logs of the attempts, remove the cause, then: {classification.resume_command(job)}"
    return Decision(replace(_enter(state, states.FAILED, why, now), fix=fix), (Event("failed", why, step=state.best_step),))


def _enter(state: State, phase: str, reason: str, now: float) -> State:
    return replace(state, phase=phase, reason=reason, since=now)


def _update_attempt(state: State, **changes: object) -> State:
    return replace(state, attempts=(*state.attempts[:-1], replace(state.current, **changes)))  # type: ignore[arg-type]


def _adopt(state: State, observation: Observation) -> State:
    """Store the hosts, id and verdict of the target."""
    hosts = state.hosts or observation.hosts
    names = state.current.hosts or tuple(host.name for host in hosts)
    target_id = state.target_id or observation.target_id
    state = replace(state, hosts=hosts, target_id=target_id, verdict=observation.verdict or state.verdict)
    return _update_attempt(state, hosts=names, target_id=target_id)


def _record_answers(state: State, observation: Observation, now: float) -> tuple[State, list[Event]]:
    if observation.status == observations.SILENT and not observation.nodes:
        return state, []  # the target itself did not answer, so the nodes are unknown
    before = dict(state.unknown)
    silent = {node.host: node.why for node in observation.nodes if node.state == observations.SILENT}
    events = [Event("node_unknown", why, host) for host, why in silent.items() if host not in before]
    events += [Event("node_back", "answers again", host) for host in before if host not in silent]
    return replace(state, unknown=tuple(sorted((host, before.get(host, now)) for host in silent))), events


def _end_silent_launchers(job: Job, state: State, observation: Observation, now: float) -> Observation:
    """Count a launcher as ended if it does not answer for long and the scheduler reports that its host responds: the host is not lost.

    This needs an expired lease: a scheduler that has forgotten the job reports the same while launchers run.
    """
    since = dict(state.unknown)
    fenced = state.revoked and now - state.revoked_at >= job.policy.lease_s + FENCE_S

    def evaluate_node(node: NodeObservation) -> NodeObservation:
        over = fenced and node.host_responds and node.state == observations.SILENT and now - since[node.host] >= job.policy.lost_after_s
        return replace(node, state=observations.ENDED) if over else node

    return replace(observation, nodes=tuple(evaluate_node(node) for node in observation.nodes))


def _record_progress(state: State, observation: Observation, now: float) -> tuple[State, list[Event]]:
    found = observation.progress
    state = replace(state, checkpoint=found.checkpoint if found.checkpoint is not None else state.checkpoint)
    events: list[Event] = []
    if found.first is not None and state.current.first_step is None:
        state = _update_attempt(state, first_step=found.first)
        events.append(Event("first_step", f"the first step of attempt {state.attempt}", step=found.first))
    if found.step is None or found.step == state.current.last_step:
        return state, events
    if state.current.first_step_at is None:
        state = _update_attempt(state, first_step_at=now)
    state = replace(_update_attempt(state, last_step=found.step), step=found.step, step_at=now)
    if state.best_step is None or found.step > state.best_step:
        state = replace(state, best_step=found.step, restarts_without_progress=0, stops=0)
    return state, events


def _lost(job: Job, state: State, observation: Observation, now: float) -> tuple[str, ...]:
    """Return the nodes that have been silent for too long. While the job makes steps, every node is alive, whatever SSH reports."""
    silent = {node.host for node in observation.nodes if node.state == observations.SILENT}
    if observation.verdict == observations.NODE_FAIL:  # Slurm has already waited for SlurmdTimeout
        return tuple(host for host, _ in state.unknown if host in silent)
    limit = job.policy.lost_after_s
    if state.step_at is not None and now - state.step_at < limit:
        return ()
    return tuple(host for host, since in state.unknown if host in silent and now - since >= limit)


def _has_ended(state: State, observation: Observation) -> bool:
    """Return whether the attempt has ended on every node."""
    open_ends = [node for node in observation.nodes if node.state in (observations.RUNNING, observations.SILENT)]
    not_started = state.phase == states.STARTING and any(node.state == observations.ABSENT for node in observation.nodes)
    return observation.status == observations.ENDED and not open_ends and not not_started


def _end(state: State, observation: Observation, now: float, *, lost: tuple[str, ...]) -> tuple[State, list[Event]]:
    restarted = tuple(node.host for node in observation.nodes if node.restarted)
    lost_hosts = tuple(dict.fromkeys((*lost, *restarted)))
    code = classification.deciding_code(node.exit_code for node in observation.nodes)
    state = replace(_update_attempt(state, ended=now, exit_code=code), lost=lost_hosts, unknown=(), placed=())
    if (never := not_started.never_started(observation)) and not state.stopping:
        state = replace(
            state, stopping=classification.STOP_NOT_STARTED, reason=not_started.reason(never), absent=not_started.chosen_hosts(never)
        )
    events = [Event("node_lost", "rebooted during the attempt", host) for host in restarted]
    return _enter(state, states.ENDED, state.reason if state.stopping else "the attempt has ended", now), events


def _stop(state: State, why: str, reason: str, now: float, *, deadline: float) -> tuple[State, list[Event]]:
    state = replace(_enter(state, states.STOPPING, reason, now), stopping=why, deadline=deadline)
    if deadline <= now:
        state = replace(state, revoked=True, revoked_at=now)
    return state, [Event("stopping", reason, step=state.step)]


def _stopping(job: Job, state: State, observation: Observation, now: float, lost: tuple[str, ...]) -> tuple[State, list[Event]]:
    """End the attempt once every node has ended, or once the lease of every other node expired long enough ago."""
    if not state.revoked:
        return (replace(state, revoked=True, revoked_at=now) if now >= state.deadline else state), []
    fenced = state.revoked_at + job.policy.lease_s + FENCE_S
    if now < fenced:
        return state, []
    silent = {node.host for node in observation.nodes if node.state == observations.SILENT}
    running = {node.host for node in observation.nodes if node.state == observations.RUNNING}
    nodes_unknown = not observation.nodes and observation.status != observations.ENDED
    if now < fenced + UNSTOPPABLE_S and (silent - set(lost) or running or nodes_unknown):
        return state, []
    # A direct host that answers and still runs the launcher is faulty. A host that a scheduler has not released is unknown.
    unclear = tuple(sorted(running)) if job.platform else ()
    lost_hosts = tuple(sorted((silent | running) - set(unclear)))
    events = [
        Event("node_lost", "cannot be stopped" if host in running else _NO_ANSWER.format(job.policy.lost_after_s), host)
        for host in lost_hosts
    ]
    events += [
        Event("node_unclear", f"{job.platform} has not released it {now - state.revoked_at:.0f} s after the stop", host) for host in unclear
    ]
    state, more = _end(replace(state, unclear=unclear), observation, now, lost=lost_hosts)
    return state, [*events, *more]


def _ongoing(job: Job, state: State, observation: Observation, clock: Clock, lost: tuple[str, ...]) -> tuple[State, list[Event]]:
    """Return what follows for an attempt that is starting or running."""
    now = clock.now
    state, settle = _record_failing(job, state, observation, now)
    if state.failing_since and now - state.failing_since >= settle:
        return _failed(state, observation, now)
    if lost:
        return _stop(state, classification.STOP_LOST, f"{', '.join(lost)} {_NO_ANSWER.format(job.policy.lost_after_s)}", now, deadline=now)
    if state.phase == states.STARTING:
        return _starting(job, state, observation, clock)
    if observation.paused:
        return replace(state, since=now, step_at=None if state.step_at is None else now), []
    limit, since, what = job.policy.progress_timeout_s, state.step_at or 0.0, "no new step"
    if state.current.first_step_at is None:
        limit, since, what = job.policy.first_step_timeout_s, state.since, "no first step"
    if limit and now - max(since, clock.watching_since) > limit:
        return _stop(state, classification.STOP_HANG, f"{what} for {limit} s", now, deadline=now)
    return state, []


def _failed(state: State, observation: Observation, now: float) -> tuple[State, list[Event]]:
    """Stop an attempt of which some nodes have ended. If these never started, the others could only wait for them."""
    if never := not_started.never_started(observation):
        state = replace(state, absent=not_started.chosen_hosts(never))
        return _stop(state, classification.STOP_NOT_STARTED, not_started.reason(never), now, deadline=now)
    ended = ", ".join(f"{node.host} ({node.exit_code})" for node in observation.nodes if node.state == observations.ENDED)
    return _stop(state, classification.STOP_FAILED, f"the launcher has ended on {ended or 'the nodes'}", now, deadline=now)


def _record_failing(job: Job, state: State, observation: Observation, now: float) -> tuple[State, float]:
    """Record when the first node ended; return how long the other nodes may continue, in seconds."""
    codes = [node.exit_code for node in observation.nodes if node.state == observations.ENDED]
    if not codes and observation.status != observations.ENDED:
        return replace(state, failing_since=0.0), 0.0
    well = bool(codes) and set(codes) <= {0, classification.CHECKPOINTED}
    settle = job.grace_s + AFTER_GRACE_S if well and observation.status != observations.ENDED else float(job.policy.settle_s)
    return (state if state.failing_since else replace(state, failing_since=now)), settle


def _starting(job: Job, state: State, observation: Observation, clock: Clock) -> tuple[State, list[Event]]:
    now = clock.now
    absent = [node for node in observation.nodes if node.state == observations.ABSENT]
    if observation.status in (observations.RUNNING, observations.ENDED) and not absent and not state.unknown:
        text = f"attempt {state.attempt} runs on {', '.join(host.name for host in state.hosts)}"
        return _enter(state, states.RUNNING, text, now), [Event("attempt_running", text)]
    queued = job.platform and observation.status in (observations.QUEUED, observations.RUNNING)
    if observation.status == observations.QUEUED and observation.why:
        state = replace(state, reason=observation.why)
    limit = job.policy.hosts_timeout_s if observation.status == observations.SILENT else START_S
    late = not queued and now - max(state.since, clock.watching_since) > limit
    blamed = not_started.chosen_hosts(absent) if job.platform else tuple(node.host for node in absent)
    if not late and (held := not_started.late(job, state, now, clock.watching_since)):
        late, limit, blamed = True, not_started.limit_s(job), held
    if late:
        details = "; ".join(
            [*(f"{node.host}: {node.why}" for node in observation.nodes if node.why), *([observation.why] if observation.why else [])]
        )
        reason = f"it did not start within {limit:.0f} s: {details}"
        return _stop(replace(state, absent=blamed), classification.STOP_NOT_STARTED, reason, now, deadline=now)
    return state, []
