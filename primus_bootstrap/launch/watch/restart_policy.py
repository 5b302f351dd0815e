"""The restart policy: (job, state, what was seen, now) -> the next state. Pure; the phase of the state says what the loop does next.

pending, waiting: choose hosts   starting: start   running: look   stopping: stop   ended: find the cause   done, failed, cancelled: nothing
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import classification as endings
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import not_started
from primus_bootstrap.launch.watch import observation as seeing
from primus_bootstrap.launch.watch.host_choice import choose
from primus_bootstrap.launch.watch.job_folder import CANCEL, RESUME
from primus_bootstrap.launch.watch.job_state import Attempt, Excluded, State

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.classification import Ending
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.observation import Candidates, NodeObservation, Observation

FENCE_S = 5.0  # a node looks at its lease every second and needs some to end what it runs
UNSTOPPABLE_S = 60.0  # after that a node which still says that it runs something is lost
LEFT_OUT = "left_out"  # the cause of an exclusion that the submission asked for
START_S = 60.0  # to start on every host over SSH, or to hand the job to Slurm or Kubernetes
AFTER_GRACE_S = 30.0  # beyond the ranks' own time for a checkpoint
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
    """Now, and since when this watcher watches: time that passed while nobody did counts against no limit. Seconds since the epoch."""

    now: float
    watching_since: float = 0.0


@dataclass(frozen=True)
class Decision:
    """The next state, and what happened."""

    state: State
    events: tuple[Event, ...] = ()


def submitted(job: Job, now: float) -> State:
    """Return the state of a job that nobody has watched yet: it keeps off the hosts that were out of service when it was submitted."""
    excluded = tuple(Excluded(one.host, now, LEFT_OUT, one.reason) for one in job.left_out)
    return State(job.id, since=now, reason="submitted", excluded=excluded)


def taken_over(job: Job, state: State, now: float) -> State:
    """Return the state as a watcher that begins may go on with it: what another host's clock said may be ahead of its own, or behind.

    The time that nodes have to end counts anew, since nobody knows when they could read that they must.
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


def ask(job: Job, state: State, requests: frozenset[str], now: float) -> Decision:
    """Act on what people asked for."""
    events: list[Event] = []
    if RESUME in requests and state.phase in (states.FAILED, states.CANCELLED):
        fresh = replace(state, cancel=False, fix="", restarts=0, restarts_without_progress=0, stops=0, not_before=now)
        state = _to(fresh, states.WAITING, "resumed on request", now)
        events.append(Event("resumed", state.reason))
    if CANCEL in requests and not state.cancel and state.phase not in states.TERMINAL:
        events.append(Event("requested", "cancel"))
        state = replace(state, cancel=True)
        if state.phase in (states.PENDING, states.WAITING):
            state = _to(state, states.CANCELLED, "cancelled on request", now)
            events.append(Event("cancelled", state.reason))
        elif state.phase in (states.STARTING, states.RUNNING):
            deadline = now + job.grace_s + AFTER_GRACE_S
            state, more = _stop(state, endings.STOP_CANCEL, "cancelled on request", now, deadline=deadline)
            events += more
    return Decision(state, tuple(events))


def begin(job: Job, state: State, candidates: Candidates, moment: Clock, *, steps_offset: int = 0) -> Decision:
    """Choose hosts and intend the next attempt, or go on waiting for hosts."""
    now = moment.now
    choice = choose(job, state, candidates)
    if choice.why:
        limit = max(state.since, state.not_before, moment.watching_since) + job.policy.hosts_timeout_s
        if now > limit:
            why = f"waited {job.policy.hosts_timeout_s} s for hosts: {choice.why}"
            return _give_up(state, why, "bring hosts back, then: primus-bootstrap workload resume", now)
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
        revoked=False,
        revoked_at=0.0,
        hosts=choice.hosts,
        target_id="",
        spares=choice.spares,
        stopping="",
        deadline=0.0,
        verdict="",
        failing_since=0.0,
        unknown=(),
        lost=(),
        unclear=(),
        absent=(),
        placed=(),
        step=None,
        step_at=None,
        excluded=choice.excluded,
        attempts=(*state.attempts, Attempt(number, names, started=now, steps_offset=steps_offset)),
    )
    events = [Event("node_returned", "there are not enough other hosts, and nothing speaks against it", host) for host in choice.returned]
    return Decision(
        _to(begun, states.STARTING, f"attempt {number}{where}", now), (*events, Event("attempt_starting", f"attempt {number}{where}"))
    )


def decide(job: Job, state: State, seen: Observation, moment: Clock) -> Decision:
    """Judge what was seen of an attempt that is starting, running or being stopped."""
    now = moment.now
    events: list[Event] = []
    state = _take_over(state, seen)
    state, more = _note_answers(state, seen, now)
    events += more
    state = replace(state, placed=not_started.placed(state, seen, now))
    seen = _without_a_word(job, state, seen, now)
    state, more = _note_progress(state, seen, now)
    events += more
    lost = _lost(job, state, seen, now)
    if _over(state, seen):
        state, more = _end(state, seen, now, lost=())
    elif state.phase == states.STOPPING:
        state, more = _stopping(job, state, seen, now, lost)
    else:
        state, more = _going(job, state, seen, moment, lost)
    return Decision(state, (*events, *more))


def judge(job: Job, state: State, ending: Ending, now: float) -> Decision:
    """Decide what follows an attempt that is over."""
    state = _last(state, cause=ending.cause, reason=ending.reason)
    events = [Event("attempt_ended", ending.reason, step=state.step)]
    if ending.kind == endings.DONE:
        return Decision(_to(state, states.DONE, ending.reason, now), (*events, Event("done", ending.reason, step=state.step)))
    if ending.kind == endings.CANCELLED:
        ended = replace(_to(state, states.CANCELLED, ending.reason, now), fix=ending.fix)
        return Decision(ended, (*events, Event("cancelled", ending.reason, step=state.step)))
    known = {item.host for item in state.excluded}
    new = [Excluded(host, now, ending.cause, ending.reason, ending.hardware) for host in ending.hosts if host not in known]
    state = replace(state, excluded=(*state.excluded, *new))
    events += [Event("node_excluded", item.reason, item.host) for item in new]
    decision = _again(job, state, ending, now)
    return Decision(decision.state, (*events, *decision.events))


def _again(job: Job, state: State, ending: Ending, now: float) -> Decision:
    """Start again, or give up with the reason."""
    if ending.kind == endings.OWN and _repeated(state):
        at = "before the first step" if state.current.last_step is None else f"after step {state.current.last_step}"
        return _give_up(state, f"ended twice {at} for the same reason: {ending.reason}", ending.fix, now)
    # Going on from a checkpoint costs nothing; an attempt that did not make a single step is no such thing.
    stepped = state.current.first_step is not None
    outside = ending.cause == endings.FROM_OUTSIDE
    free = ending.kind == endings.UNFINISHED and not outside and stepped
    policy = job.policy
    # Nor is a job at fault that is stopped from outside, or whose place is taken before its first step, as often in a row as it may fail;
    # what goes on after that is no accident: a queue, for one, evicts a job of which one pod never begins.
    forgiven = (outside or (ending.cause == endings.PREEMPTED and not stepped)) and state.stops < policy.max_restarts_without_progress
    stops = state.stops + (1 if forgiven else 0)
    spent = state.restarts_without_progress + (0 if free or forgiven else 1)
    if spent > policy.max_restarts_without_progress:
        since = "at all" if state.best_step is None else f"since step {state.best_step}"
        why = f"{policy.max_restarts_without_progress} restarts without progress {since}; the last attempt: {ending.reason}"
        return _give_up(state, why, ending.fix, now)
    if policy.max_restarts and state.restarts >= policy.max_restarts:
        return _give_up(state, f"{policy.max_restarts} restarts in all; the last attempt: {ending.reason}", ending.fix, now)
    pause = 0 if free else policy.backoff_s[min(spent + stops, len(policy.backoff_s)) - 1]
    counted = replace(state, restarts=state.restarts + 1, restarts_without_progress=spent, stops=stops)
    again = replace(counted, not_before=now + pause, fix=ending.fix)
    text = f"starts again{f' in {pause} s' if pause else ''}: {ending.reason}"
    return Decision(_to(again, states.WAITING, text, now), (Event("restart", text),))


def _repeated(state: State) -> bool:
    if len(state.attempts) < 2:
        return False
    before, last = state.attempts[-2:]
    return (before.cause, before.last_step) == (last.cause, last.last_step)


def _give_up(state: State, why: str, fix: str, now: float) -> Decision:
    fix = fix or "look at the attempts' logs, mend the cause, then: primus-bootstrap workload resume"
    return Decision(replace(_to(state, states.FAILED, why, now), fix=fix), (Event("failed", why, step=state.best_step),))


def _to(state: State, phase: str, reason: str, now: float) -> State:
    return replace(state, phase=phase, reason=reason, since=now)


def _last(state: State, **changes: object) -> State:
    return replace(state, attempts=(*state.attempts[:-1], replace(state.current, **changes)))  # type: ignore[arg-type]


def _take_over(state: State, seen: Observation) -> State:
    """Keep what the target chose or says of the end."""
    hosts = state.hosts or seen.hosts
    names = state.current.hosts or tuple(host.name for host in hosts)
    target_id = state.target_id or seen.target_id
    state = replace(state, hosts=hosts, target_id=target_id, verdict=seen.verdict or state.verdict)
    return _last(state, hosts=names, target_id=target_id)


def _note_answers(state: State, seen: Observation, now: float) -> tuple[State, list[Event]]:
    if seen.status == seeing.SILENT and not seen.nodes:
        return state, []  # the target itself did not answer, and says nothing of nodes
    before = dict(state.unknown)
    silent = {node.host: node.why for node in seen.nodes if node.state == seeing.SILENT}
    events = [Event("node_unknown", why, host) for host, why in silent.items() if host not in before]
    events += [Event("node_back", "answers again", host) for host in before if host not in silent]
    return replace(state, unknown=tuple(sorted((host, before.get(host, now)) for host in silent))), events


def _without_a_word(job: Job, state: State, seen: Observation, now: float) -> Observation:
    """Take launchers that have been silent for long on hosts that the platform hears from for ended: that is no loss of a host.

    Not before their lease is over: a platform that has forgotten the job would say the same of launchers that run.
    """
    since = dict(state.unknown)
    fenced = state.revoked and now - state.revoked_at >= job.policy.lease_s + FENCE_S

    def judged(node: NodeObservation) -> NodeObservation:
        over = fenced and node.heard and node.state == seeing.SILENT and now - since[node.host] >= job.policy.lost_after_s
        return replace(node, state=seeing.ENDED) if over else node

    return replace(seen, nodes=tuple(judged(node) for node in seen.nodes))


def _note_progress(state: State, seen: Observation, now: float) -> tuple[State, list[Event]]:
    found = seen.progress
    state = replace(state, checkpoint=found.checkpoint if found.checkpoint is not None else state.checkpoint)
    if found.first is not None and state.current.first_step is not None and found.first < state.current.first_step:
        state = _last(state, first_step=found.first)  # metrics.prom was seen before the first lines of steps.jsonl
    if found.step is None or found.step == state.current.last_step:
        return state, []
    events: list[Event] = []
    if state.current.first_step_at is None:
        state = _last(state, first_step=found.first, first_step_at=now)
        events.append(Event("first_step", f"the first step of attempt {state.attempt}", step=found.first))
    state = replace(_last(state, last_step=found.step), step=found.step, step_at=now)
    if state.best_step is None or found.step > state.best_step:
        state = replace(state, best_step=found.step, restarts_without_progress=0, stops=0)
    return state, events


def _lost(job: Job, state: State, seen: Observation, now: float) -> tuple[str, ...]:
    """Return the nodes that have not answered for long; as long as steps are made every node is there, whatever SSH says."""
    silent = {node.host for node in seen.nodes if node.state == seeing.SILENT}
    if seen.verdict == seeing.NODE_FAIL:  # Slurm has waited already: SlurmdTimeout
        return tuple(host for host, _ in state.unknown if host in silent)
    limit = job.policy.lost_after_s
    if state.step_at is not None and now - state.step_at < limit:
        return ()
    return tuple(host for host, since in state.unknown if host in silent and now - since >= limit)


def _over(state: State, seen: Observation) -> bool:
    """Say whether nothing of the attempt runs, as far as everybody says, and everybody has said it."""
    open_ends = [node for node in seen.nodes if node.state in (seeing.RUNNING, seeing.SILENT)]
    not_started = state.phase == states.STARTING and any(node.state == seeing.ABSENT for node in seen.nodes)
    return seen.status == seeing.ENDED and not open_ends and not not_started


def _end(state: State, seen: Observation, now: float, *, lost: tuple[str, ...]) -> tuple[State, list[Event]]:
    restarted = tuple(node.host for node in seen.nodes if node.restarted)
    gone = tuple(dict.fromkeys((*lost, *restarted)))
    code = endings.deciding_code(node.exit_code for node in seen.nodes)
    state = replace(_last(state, ended=now, exit_code=code), lost=gone, unknown=(), placed=())
    if (never := not_started.never_began(seen)) and not state.stopping:
        state = replace(state, stopping=endings.STOP_NOT_STARTED, reason=not_started.told(never), absent=not_started.to_blame(never))
    events = [Event("node_lost", "started again in the middle", host) for host in restarted]
    return _to(state, states.ENDED, state.reason if state.stopping else "the attempt is over", now), events


def _stop(state: State, why: str, reason: str, now: float, *, deadline: float) -> tuple[State, list[Event]]:
    state = replace(_to(state, states.STOPPING, reason, now), stopping=why, deadline=deadline)
    if deadline <= now:
        state = replace(state, revoked=True, revoked_at=now)
    return state, [Event("stopping", reason, step=state.step)]


def _stopping(job: Job, state: State, seen: Observation, now: float, lost: tuple[str, ...]) -> tuple[State, list[Event]]:
    """Leave only when everything has ended, or every node that may still run something has lost its lease long enough ago."""
    if not state.revoked:
        return (replace(state, revoked=True, revoked_at=now) if now >= state.deadline else state), []
    fenced = state.revoked_at + job.policy.lease_s + FENCE_S
    if now < fenced:
        return state, []
    silent = {node.host for node in seen.nodes if node.state == seeing.SILENT}
    running = {node.host for node in seen.nodes if node.state == seeing.RUNNING}
    nobody_known = not seen.nodes and seen.status != seeing.ENDED
    if now < fenced + UNSTOPPABLE_S and (silent - set(lost) or running or nobody_known):
        return state, []
    # A host that answers and still runs it is at fault; what a platform still collects from, and does not call silent, nobody knows.
    unclear = tuple(sorted(running)) if job.platform else ()
    gone = tuple(sorted((silent | running) - set(unclear)))
    events = [
        Event("node_lost", "cannot be stopped" if host in running else _NO_ANSWER.format(job.policy.lost_after_s), host) for host in gone
    ]
    events += [
        Event("node_unclear", f"{job.platform} has not got it back {now - state.revoked_at:.0f} s after the stop", host) for host in unclear
    ]
    state, more = _end(replace(state, unclear=unclear), seen, now, lost=gone)
    return state, [*events, *more]


def _going(job: Job, state: State, seen: Observation, moment: Clock, lost: tuple[str, ...]) -> tuple[State, list[Event]]:
    """Judge an attempt that is starting or running."""
    now = moment.now
    state, settle = _note_failing(job, state, seen, now)
    if state.failing_since and now - state.failing_since >= settle:
        return _failed(state, seen, now)
    if lost:
        return _stop(state, endings.STOP_LOST, f"{', '.join(lost)} {_NO_ANSWER.format(job.policy.lost_after_s)}", now, deadline=now)
    if state.phase == states.STARTING:
        return _starting(job, state, seen, moment)
    if seen.paused:
        return replace(state, since=now, step_at=None if state.step_at is None else now), []
    limit, since, what = job.policy.progress_timeout_s, state.step_at or 0.0, "no new step"
    if state.current.first_step_at is None:
        limit, since, what = job.policy.first_step_timeout_s, state.since, "no first step"
    if limit and now - max(since, moment.watching_since) > limit:
        return _stop(state, endings.STOP_HANG, f"{what} for {limit} s", now, deadline=now)
    return state, []


def _failed(state: State, seen: Observation, now: float) -> tuple[State, list[Event]]:
    """Stop what is left of an attempt of which a part has ended; where that never began, the rest could only wait for it."""
    if never := not_started.never_began(seen):
        state = replace(state, absent=not_started.to_blame(never))
        return _stop(state, endings.STOP_NOT_STARTED, not_started.told(never), now, deadline=now)
    ended = ", ".join(f"{node.host} ({node.exit_code})" for node in seen.nodes if node.state == seeing.ENDED)
    return _stop(state, endings.STOP_FAILED, f"the launcher has ended on {ended or 'the nodes'}", now, deadline=now)


def _note_failing(job: Job, state: State, seen: Observation, now: float) -> tuple[State, float]:
    """Note since when a part of the attempt has ended; return how long the rest may go on in seconds."""
    codes = [node.exit_code for node in seen.nodes if node.state == seeing.ENDED]
    if not codes and seen.status != seeing.ENDED:
        return replace(state, failing_since=0.0), 0.0
    well = bool(codes) and set(codes) <= {0, endings.CHECKPOINTED}
    settle = job.grace_s + AFTER_GRACE_S if well and seen.status != seeing.ENDED else float(job.policy.settle_s)
    return (state if state.failing_since else replace(state, failing_since=now)), settle


def _starting(job: Job, state: State, seen: Observation, moment: Clock) -> tuple[State, list[Event]]:
    now = moment.now
    absent = [node for node in seen.nodes if node.state == seeing.ABSENT]
    if seen.status in (seeing.RUNNING, seeing.ENDED) and not absent and not state.unknown:
        text = f"attempt {state.attempt} runs on {', '.join(host.name for host in state.hosts)}"
        return _to(state, states.RUNNING, text, now), [Event("attempt_running", text)]
    queued = job.platform and seen.status in (seeing.QUEUED, seeing.RUNNING)
    if seen.status == seeing.QUEUED and seen.why:
        state = replace(state, reason=seen.why)
    limit = job.policy.hosts_timeout_s if seen.status == seeing.SILENT else START_S
    late = not queued and now - max(state.since, moment.watching_since) > limit
    blamed = not_started.to_blame(absent) if job.platform else tuple(node.host for node in absent)
    if not late and (held := not_started.late(job, state, now, moment.watching_since)):
        late, limit, blamed = True, not_started.limit_s(job), held
    if late:
        said = "; ".join([*(f"{node.host}: {node.why}" for node in seen.nodes if node.why), *([seen.why] if seen.why else [])])
        reason = f"it did not start within {limit:.0f} s: {said}"
        return _stop(replace(state, absent=blamed), endings.STOP_NOT_STARTED, reason, now, deadline=now)
    return state, []
