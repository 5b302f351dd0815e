"""Decide which hosts the bench quarantines and which it releases. Pure functions."""

from __future__ import annotations

import math
from collections import defaultdict
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from primus_bootstrap.bench.name_list import first_names
from primus_bootstrap.bench.quarantine.decisions import LEAVE, Breaker, Decision, GateResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.quarantine.decisions import HostState, QuarantineRecord
    from primus_bootstrap.bench.quarantine.policy import Policy, Tier
    from primus_bootstrap.bench.reason_codes import Code
    from primus_bootstrap.core.verdicts import Verdict

_MAX_NAMES = 3
# The limits of the role `quarantine` for a record's reason: its length, and the characters that it refuses.
_MAX_REASON_CHARS = 160
_REFUSED_CHARS = str.maketrans(dict.fromkeys("{}\"'|\\\n\r", " "))
_NO_CODES: Mapping[Verdict, Code] = MappingProxyType({})


def max_quarantined(gpu_nodes: int, limit_percent: float) -> int:
    """Return how many GPU nodes the bench may quarantine: the share, rounded down, but at least one. 0 % allows none."""
    return max(1, math.floor(gpu_nodes * limit_percent / 100)) if limit_percent > 0 else 0


def decide(  # noqa: PLR0913 - all inputs of a decision; all by name
    states: Sequence[HostState],
    verdicts: Iterable[Verdict],
    *,
    policy: Policy,
    tier: Tier,
    gpu_nodes: int,
    now: float,
    codes: Mapping[Verdict, Code] = _NO_CODES,
    breaker: Breaker | None = None,
) -> GateResult:
    """Decide for every host.

    Args:
        states: All GPU nodes whose state is known, measured or not: hosts that the bench quarantined before count against the limit.
        verdicts: The verdicts of this bench. Those about two hosts or about none are ignored.
        policy: What a failed or unknown check means.
        tier: What was measured. A host that joins needs a verdict of every step marked needed.
        gpu_nodes: The number of GPU nodes in the cluster.
        now: The controller's clock (seconds since the epoch).
        codes: Why verdicts are unknown, where that is known.
    """
    by_host: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_host[verdict.host].append(verdict)
    rules = _HostRules(policy, tier, now, codes)
    decisions = tuple(rules.decide(state, by_host.get(state.host, [])) for state in states)
    new = tuple(decision.host for decision in decisions if decision.action == "quarantine")
    present = sum(any(record.ours and not record.pending for record in state.records) for state in states)
    limit = max_quarantined(gpu_nodes, policy.limit_percent)
    tripped = breaker is None and bool(new) and present + len(new) > limit
    if tripped:
        reason = (
            f"{len(new)} of {gpu_nodes} GPU nodes would be quarantined, and {present} are already: more than {limit} "
            f"(bench_quarantine_limit_percent {policy.limit_percent:g}); a shared cause, or the bench itself, is more likely"
        )
        breaker = Breaker(reason, now, new, policy.limit_percent)
    if breaker is None:
        return GateResult(decisions, None)
    held = tuple(_hold(decision, breaker) if decision.action == "quarantine" else decision for decision in decisions)
    return GateResult(held, breaker, tripped)


def _hold(decision: Decision, breaker: Breaker) -> Decision:
    return Decision(decision.host, "hold", f"the breaker is open ({breaker.reason}): {decision.reason}", decision.verdicts)


class _HostRules:
    """The rules for a single host, without the limit."""

    def __init__(self, policy: Policy, tier: Tier, now: float, codes: Mapping[Verdict, Code]) -> None:
        self._policy = policy
        self._tier = tier
        self._now = now
        self._codes = codes

    def decide(self, state: HostState, verdicts: Sequence[Verdict]) -> Decision:
        failed = tuple(
            verdict for verdict in verdicts if verdict.verdict == "fail" and self._policy.rule(verdict.check).fail == "quarantine"
        )
        obstacle = _obstacle(state)
        if obstacle:
            return Decision(state.host, LEAVE, obstacle + (f"; it failed {_check_names(failed)}" if failed else ""), failed)
        record = next(iter(state.records), None)
        if failed and (record is None or record.pending):
            return Decision(state.host, "quarantine", _record_reason(failed), failed)
        if failed:
            return Decision(state.host, LEAVE, f"in quarantine already; it failed {_check_names(failed)} again", failed)
        if record is not None:
            return self._decide_release(state.host, record, verdicts)
        return _decide_in_service(state.host, verdicts)

    def _decide_release(self, host: str, record: QuarantineRecord, verdicts: Sequence[Verdict]) -> Decision:
        """Release a host if every check that matters passed after the quarantine; otherwise say what is missing."""
        missing = [
            step.checks for step in self._tier.steps if step.is_needed and not any(_matches(verdict, step.checks) for verdict in verdicts)
        ]
        if missing:
            return Decision(host, "hold", f"no verdict of {', '.join(missing)}. Fix: bench it again ({self._tier.name})")
        holding = tuple(verdict for verdict in verdicts if verdict.verdict == "unknown" and self._on_unknown(verdict) == "hold")
        if holding:
            return Decision(host, "hold", f"{_check_names(holding)} unknown: {holding[0].reason or 'no reason given'}", holding)
        measured = [
            verdict for verdict in verdicts if verdict.verdict == "pass" or (verdict.verdict == "unknown" and self._codes.get(verdict))
        ]
        margin_s = 0.0 if record.own_clock else self._policy.clock_skew_s
        early = tuple(verdict for verdict in measured if verdict.started <= record.time + margin_s)
        if early:
            margin = f" by {margin_s:g} s (the times come from different clocks)" if margin_s else ""
            return Decision(host, "hold", f"{_check_names(early)} did not start after the quarantine{margin}. Fix: bench it again", early)
        future = tuple(verdict for verdict in measured if verdict.started > self._now + self._policy.clock_skew_s)
        if future:
            ahead_s = future[0].started - self._now
            reason = (
                f"{_check_names(future)} started {ahead_s:.0f} s in the future: the host's clock is wrong. Fix: set it, and bench again"
            )
            return Decision(host, "hold", reason, future)
        tolerated = tuple(verdict for verdict in verdicts if verdict.verdict in ("fail", "unknown"))
        return Decision(
            host, "release", f"passed {self._tier.name}" + (f"; tolerated: {_check_names(tolerated)}" if tolerated else ""), tolerated
        )

    def _on_unknown(self, verdict: Verdict) -> str:
        return self._policy.rule(verdict.check).on_unknown(self._codes.get(verdict))


def _decide_in_service(host: str, verdicts: Sequence[Verdict]) -> Decision:
    """Leave a host in service, because no check failed that quarantines it."""
    unknown = tuple(verdict for verdict in verdicts if verdict.verdict == "unknown")
    if unknown:
        return Decision(host, LEAVE, f"in service, and nothing is proved: {_check_names(unknown)} unknown", unknown)
    warned = tuple(verdict for verdict in verdicts if verdict.verdict == "fail")
    if warned:
        return Decision(host, LEAVE, f"the policy only warns about {_check_names(warned)}", warned)
    return Decision(host, LEAVE, "it passed" if verdicts else "it was not benched")


def _obstacle(state: HostState) -> str:
    """Return why the bench may not decide about a host; empty where it may."""
    if not state.known:
        return "it is unknown whether the host is out of service"
    other = next((record for record in state.records if not record.ours), None)
    return f"quarantined by {other.owner}: {other.reason}" if other else ""


def _matches(verdict: Verdict, pattern: str) -> bool:
    return verdict.verdict != "skipped" and fnmatchcase(verdict.check, pattern)


def _check_names(verdicts: Sequence[Verdict]) -> str:
    return first_names((verdict.check for verdict in verdicts), _MAX_NAMES)


def _record_reason(failed: Sequence[Verdict]) -> str:
    """Return a reason that fits a quarantine record and `sinfo -R`: one line, no quotes, limited length."""
    first = failed[0]
    device = f" (device {first.device})" if first.device else ""
    text = f"bench: {_check_names(failed)} failed{device}: {first.reason}".translate(_REFUSED_CHARS)
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 3].rstrip()}..."
