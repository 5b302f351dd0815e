"""Who joins, who goes out of service and who stays, by what the bench said. A pure function: it is told what is, and changes nothing.

quarantine  it failed where the policy quarantines: to be taken out of service, in the bench's name
release     the bench had it out of service, and it has passed since: to be put back
hold        what is asked for must not be done now: it stays as it is, with the reason
leave       nothing is to be done: it passed, nothing is proved, or it is somebody else's
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.judging.reason_codes import Code
    from primus_bootstrap.bench.quarantine.policy import Policy, Tier
    from primus_bootstrap.core.verdicts import Verdict

OWNER = "primus-bench"
PENDING = "bench pending"
BREAKER_SCHEMA = "primus.bench-breaker/1"
DECISION_SCHEMA = "primus.bench-decision/1"
_NAMED = 3
# How many characters a quarantine's reason may have, and what it may not hold; the role `quarantine` refuses the rest.
_REASON_CHARS = 160
_UNWELCOME = str.maketrans(dict.fromkeys("{}\"'|\\\n\r", " "))

Action = Literal["quarantine", "release", "hold", "leave"]
_NO_CODES: Mapping[Verdict, Code] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """A quarantine record, which keeps a host out of service.

    A drain or a cordon with no record behind it is none: nobody asks for it, and what keeps records leaves it (slurm, kube_quarantine).
    `time` is in seconds since the epoch. `own_clock`: whether the host's own clock said it, as it says when a check started.
    """

    owner: str
    reason: str
    time: float = 0.0
    own_clock: bool = False

    @property
    def ours(self) -> bool:
        """Whether the bench may lift it."""
        return self.owner == OWNER

    @property
    def pending(self) -> bool:
        """Whether it is a host that waits for its first bench."""
        return self.ours and self.reason == PENDING


@dataclass(frozen=True, slots=True)
class HostState:
    """A host before the gate. `known` is False where it could not be found out whether it is out of service."""

    host: str
    standing: tuple[QuarantineRecord, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class Breaker:
    """Why no host is quarantined any more. It stands until a person takes it away."""

    reason: str
    since: float
    hosts: tuple[str, ...]
    limit_percent: float

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data for `json.dumps`."""
        return {
            "schema": BREAKER_SCHEMA,
            "reason": self.reason,
            "since": self.since,
            "hosts": list(self.hosts),
            "limit_percent": self.limit_percent,
        }


def parse_breaker(data: Mapping[str, Any]) -> Breaker:
    """Read a record; one that is damaged is a breaker all the same, and says so."""
    try:
        return Breaker(str(data["reason"]), float(data["since"]), tuple(map(str, data["hosts"])), float(data["limit_percent"]))
    except (KeyError, TypeError, ValueError) as error:
        return Breaker(f"a breaker stands whose record cannot be read: {error!r}", 0.0, (), 0.0)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done with a host. `reason` is for the quarantine's record and for people; `verdicts` are those behind it."""

    host: str
    action: Action
    reason: str
    verdicts: tuple[Verdict, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the decision as plain data for `json.dumps`."""
        verdicts = [verdict.to_json() for verdict in self.verdicts]
        return {"schema": DECISION_SCHEMA, "host": self.host, "action": self.action, "reason": self.reason, "verdicts": verdicts}


@dataclass(frozen=True, slots=True)
class Gate:
    """Decisions in the order of the states given, and the breaker that stands now; `tripped` where it came to stand just now."""

    decisions: tuple[Decision, ...]
    breaker: Breaker | None
    tripped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data for `json.dumps`."""
        return {
            "decisions": [decision.to_json() for decision in self.decisions],
            "breaker": self.breaker.to_json() if self.breaker else None,
            "tripped": self.tripped,
        }


def may_quarantine(gpu_nodes: int, limit_percent: float) -> int:
    """Return how many GPU nodes the bench may have in quarantine: the share, rounded down, but one node at least; none where it is 0."""
    return max(1, math.floor(gpu_nodes * limit_percent / 100)) if limit_percent > 0 else 0


def decide(  # noqa: PLR0913 - the whole of what a decision rests on; all by name
    states: Sequence[HostState],
    verdicts: Iterable[Verdict],
    *,
    policy: Policy,
    tier: Tier,
    gpu_nodes: int,
    now: float,
    codes: Mapping[Verdict, Code] = _NO_CODES,
    breaker: Breaker | None = None,
) -> Gate:
    """Decide for every host.

    Args:
        states: Every GPU node of the cluster whose state is known, benched or not: those that are ours already count for the limit.
        verdicts: Of this bench. Those of a path (two hosts) and those of no host are nobody's, and are left out.
        policy: What a failing or unknown check means.
        tier: What was measured; a host that wants to join must have a verdict of every step that is needed.
        gpu_nodes: How many GPU nodes the cluster has.
        now: Seconds since the epoch, by the clock here.
        codes: Why verdicts are unknown, where that is known.
        breaker: The one that stands.
    """
    by_host: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_host[verdict.host].append(verdict)
    judge = _GateEvaluation(policy, tier, now, codes)
    wished = [judge.decide(state, by_host.get(state.host, [])) for state in states]
    fresh = tuple(decision.host for decision in wished if decision.action == "quarantine")
    ours = sum(any(each.ours and not each.pending for each in state.standing) for state in states)
    limit = may_quarantine(gpu_nodes, policy.limit_percent)
    tripped = breaker is None and bool(fresh) and ours + len(fresh) > limit
    if tripped:
        reason = (
            f"{len(fresh)} of {gpu_nodes} GPU nodes would be quarantined and {ours} are: more than {limit} "
            f"(bench_quarantine_limit_percent {policy.limit_percent:g}); rather something that they share, or the bench itself"
        )
        breaker = Breaker(reason, now, fresh, policy.limit_percent)
    if breaker is None:
        return Gate(tuple(wished), None)
    held = tuple(_held(decision, breaker) if decision.action == "quarantine" else decision for decision in wished)
    return Gate(held, breaker, tripped)


def _held(decision: Decision, breaker: Breaker) -> Decision:
    return Decision(decision.host, "hold", f"the breaker holds ({breaker.reason}): {decision.reason}", decision.verdicts)


class _GateEvaluation:
    """What one gate knows of everybody."""

    def __init__(self, policy: Policy, tier: Tier, now: float, codes: Mapping[Verdict, Code]) -> None:
        self._policy = policy
        self._tier = tier
        self._now = now
        self._codes = codes

    def decide(self, state: HostState, verdicts: Sequence[Verdict]) -> Decision:
        """Decide for one host, as if there were no limit."""
        failed = tuple(each for each in verdicts if each.verdict == "fail" and self._policy.rule(each.check).fail == "quarantine")
        others = _others(state)
        if others:
            return Decision(state.host, "leave", others + (f"; it failed {_names(failed)}" if failed else ""), failed)
        ours = next(iter(state.standing), None)
        if failed and (ours is None or ours.pending):
            return Decision(state.host, "quarantine", _record_reason(failed), failed)
        if failed:
            return Decision(state.host, "leave", f"in quarantine already; it failed {_names(failed)} again", failed)
        if ours is not None:
            return self._may_release(state.host, ours, verdicts)
        told = tuple(each for each in verdicts if each.verdict == "unknown") or tuple(each for each in verdicts if each.verdict == "fail")
        if told and told[0].verdict == "unknown":
            reason = f"in service, and nothing is proved: {_names(told)} unknown"
        else:
            reason = f"the policy only warns of {_names(told)}" if told else "it passes" if verdicts else "it was not benched"
        return Decision(state.host, "leave", reason, told)

    def _may_release(self, host: str, standing: QuarantineRecord, verdicts: Sequence[Verdict]) -> Decision:
        """Release where everything that matters passed after the quarantine; say what is missing elsewhere."""
        lacking = [step.checks for step in self._tier.steps if step.needed and not any(_says(each, step.checks) for each in verdicts)]
        if lacking:
            return Decision(
                host, "hold", f"no verdict of {', '.join(lacking)}: unknown is not good. Fix: bench it again ({self._tier.name})"
            )
        holding = tuple(each for each in verdicts if each.verdict == "unknown" and self._means(each) == "hold")
        if holding:
            first = holding[0]
            return Decision(host, "hold", f"{_names(holding)} unknown: {first.reason or 'no reason given'}", holding)
        counted = [each for each in verdicts if each.verdict == "pass" or (each.verdict == "unknown" and self._codes.get(each))]
        margin = 0.0 if standing.own_clock else self._policy.clock_skew_s
        old = tuple(each for each in counted if each.started <= standing.time + margin)
        if old:
            seconds = f" by {margin:g} s (the clocks are not the same)" if margin else ""
            return Decision(host, "hold", f"{_names(old)} did not start after the quarantine{seconds}. Fix: bench it again", old)
        ahead = tuple(each for each in counted if each.started > self._now + self._policy.clock_skew_s)
        if ahead:
            early = ahead[0].started - self._now
            reason = f"{_names(ahead)} started {early:.0f} s from now: its clock is wrong. Fix: set it, and bench it again"
            return Decision(host, "hold", reason, ahead)
        tolerated = tuple(each for each in verdicts if each.verdict in ("fail", "unknown"))
        reason = f"passed {self._tier.name}" + (f"; not held against it: {_names(tolerated)}" if tolerated else "")
        return Decision(host, "release", reason, tolerated)

    def _means(self, verdict: Verdict) -> str:
        return self._policy.rule(verdict.check).on_unknown(self._codes.get(verdict))


def _others(state: HostState) -> str:
    """Return why a host is not the bench's to decide about; empty where it is."""
    if not state.known:
        return "whether it is out of service could not be found out"
    foreign = next((each for each in state.standing if not each.ours), None)
    return f"out of service by {foreign.owner}: {foreign.reason}" if foreign else ""


def _says(verdict: Verdict, pattern: str) -> bool:
    return verdict.verdict != "skipped" and fnmatchcase(verdict.check, pattern)


def _names(verdicts: Sequence[Verdict]) -> str:
    names = list(dict.fromkeys(verdict.check for verdict in verdicts))
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _record_reason(failed: Sequence[Verdict]) -> str:
    """Return a reason that a quarantine record and `sinfo -R` take: one line, no quotes, not too long."""
    first = failed[0]
    where = f" (device {first.device})" if first.device else ""
    text = f"bench: {_names(failed)} failed{where}: {first.reason}".translate(_UNWELCOME)
    return text if len(text) <= _REASON_CHARS else f"{text[: _REASON_CHARS - 3].rstrip()}..."
