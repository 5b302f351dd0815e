"""What runs over a fabric say of hosts and of the paths between them, as verdicts named `fabric_…`.

A path's verdict bears both names (`gpu1,gpu2`), is never `fail`, and is nobody's alone.
"""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.core.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.fabric.bisection import BisectionResult, PathState, State
    from primus_bootstrap.bench.fabric.group_speeds import GroupVerdict
    from primus_bootstrap.bench.fabric.pair_rounds import Pair
    from primus_bootstrap.bench.judging.reason_codes import Code

_SAID: dict[State, tuple[Outcome, Code | None]] = {
    "pass": ("pass", None),
    "fail": ("fail", None),
    "suspect": ("unknown", "suspect"),
    "unsteady": ("unknown", "unsteady"),
    "large": ("unknown", "large"),
    "unknown": ("unknown", None),
}
_FIX_HOST = "look at its network ports, cables and switch ports (`primus-cli preflight --checks network`), then bench it again"
_FIX_PATH = "look at the cables and switches between the two; each of them passes with others"
_FIX_AGAIN = "bench it again"
FIX_MORE = "bench more hosts together: 4 have enough pairs to be compared"
_FIX_LARGE = "compare the bus bandwidth of groups by their size: latency of the ring, TCP instead of RDMA, or uplinks that too many share"
_LEAST_FAILED = 2
_NOT_SAID: Mapping[Pair, GroupVerdict] = MappingProxyType({})


class FabricVerdicts(NamedTuple):
    """Verdicts, and the codes of those that are unknown and have one."""

    verdicts: tuple[Verdict, ...]
    codes: Mapping[Verdict, Code]


class _Stated(NamedTuple):
    """What is said of a host or a path."""

    outcome: Outcome
    reason: str
    fix: str
    code: Code | None


def bisection_verdicts(found: BisectionResult, *, started: float, seconds: float) -> FabricVerdicts:
    """Return what a bisection found: a verdict a host, one a path that is suspect, and one of no host where large groups fail.

    One host alone is skipped: it has no fabric.
    """
    source = f"bisection of {len(found.hosts)} hosts in {found.runs} runs"
    alone = len(found.hosts) == 1
    made = [_verdict(each, source, started, seconds, alone=alone) for each in (*found.hosts, *found.paths)]
    if found.largest is not None:
        made.append((_too_large(found, source, started, seconds), "large"))
    return FabricVerdicts(tuple(verdict for verdict, _ in made), {verdict: code for verdict, code in made if code})


def _verdict(found: PathState, source: str, started: float, seconds: float, *, alone: bool) -> tuple[Verdict, Code | None]:
    outcome, code = ("skipped", None) if alone else _SAID[found.state]
    fix = _FIX_PATH if len(found.hosts) > 1 else _FIX_HOST if found.state in ("fail", "suspect") else _FIX_AGAIN
    verdict = Verdict(
        check="fabric_bisection",
        host=",".join(found.hosts),
        verdict=outcome,
        expected="groups pass with it as they pass without it" if len(found.hosts) == 1 else "the two pass together",
        found=found.state,
        source=source,
        reason=f"suspect: {found.reason}" if code == "suspect" else found.reason,
        fix="" if outcome in ("pass", "skipped") else fix,
        started=started,
        seconds=seconds,
    )
    return verdict, code


def _too_large(found: BisectionResult, source: str, started: float, seconds: float) -> Verdict:
    return Verdict(
        check="fabric_bisection",
        host="",
        verdict="unknown",
        expected=f"groups of up to {len(found.hosts)} hosts pass",
        found=f"{found.largest}",
        unit="hosts",
        source=source,
        reason=f"groups of more than {found.largest} hosts fail, whoever is in them; smaller ones were run instead",
        fix=_FIX_LARGE,
        started=started,
        seconds=seconds,
    )


def pair_verdicts(
    outcomes: Mapping[Pair, Outcome], *, started: float, seconds: float, said: Mapping[Pair, GroupVerdict] = _NOT_SAID
) -> FabricVerdicts:
    """Return what pairs say of hosts: `fail` for one that fails with all of its partners, who pass with others.

    A pair that fails between hosts that pass with others is a path that is suspect; one that fails and passes is unsteady. A host all of
    whose pairs are unknown, or whose partners are no better than itself, is unknown.

    Args:
        outcomes: What each pair's runs say together.
        started: When the first run began (epoch, s).
        seconds: How long all took.
        said: The reason of what did not pass, and where a word says why it is not known.
    """
    by_host: dict[str, dict[str, Outcome]] = defaultdict(dict)
    told: dict[str, list[GroupVerdict]] = defaultdict(list)
    for (one, other), outcome in outcomes.items():
        by_host[one][other] = by_host[other][one] = outcome
        for host in (one, other):
            told[host] += [said[one, other]] if (one, other) in said else []
    proven = {host for host, partners in by_host.items() if "pass" in partners.values()}
    states = {host: _host_state(partners, told[host], proven) for host, partners in by_host.items()}
    for (one, other), outcome in outcomes.items():
        if {one, other} <= proven and (path := _path_state(outcome, said.get((one, other)))):
            states[f"{one},{other}"] = path
    verdicts: list[Verdict] = []
    codes: dict[Verdict, Code] = {}
    for host, (outcome, reason, fix, code) in states.items():
        verdict = Verdict(
            check="fabric_pairs",
            host=host,
            verdict=outcome,
            expected="pairs with good partners pass",
            source=f"{len(outcomes)} pairs of {len(by_host)} hosts",
            reason=reason,
            fix=fix,
            started=started,
            seconds=seconds,
        )
        verdicts.append(verdict)
        if code:
            codes[verdict] = code
    return FabricVerdicts(tuple(verdicts), codes)


def _host_state(partners: Mapping[str, Outcome], told: Sequence[GroupVerdict], proven: set[str]) -> _Stated:
    """Return what a host's pairs say of it."""
    outcome, reason, fix = _pair_state(partners, proven)
    telling = [each for each in told if (each.answer == "pass") == (outcome == "pass")]
    code = kube_common_code(telling)
    if outcome == "pass" and code == "no_yardstick":
        return _Stated("unknown", f"it works with {len(telling)} partners; {telling[0].reason}", FIX_MORE, code)
    if outcome != "pass" and telling:
        reason = f"{reason}; {telling[0].reason}"
    return _Stated(outcome, reason, fix, code if outcome == "unknown" else None)


def _path_state(outcome: Outcome, said: GroupVerdict | None) -> _Stated | None:
    """Return what is wrong with the path between two hosts that pass with others."""
    if outcome == "fail":
        return _Stated("unknown", "suspect: they fail together, and each passes with others", _FIX_PATH, "suspect")
    if said and said.code == "unsteady":
        return _Stated("unknown", f"unsteady: {said.reason}", _FIX_PATH, "unsteady")
    return None


def kube_common_code(said: Sequence[GroupVerdict]) -> Code | None:
    """Return the code that all of a host's pairs bear; None where one of them is known, or they differ."""
    codes = {each.code for each in said}
    return codes.pop() if len(codes) == 1 else None


def _pair_state(partners: Mapping[str, Outcome], proven: set[str]) -> tuple[Outcome, str, str]:
    """Return what a host's pairs say of it: verdict, reason, fix."""
    if "pass" in partners.values():
        return "pass", "", ""
    failed = [partner for partner, outcome in partners.items() if outcome == "fail"]
    good = [partner for partner in failed if partner in proven]
    if len(good) >= _LEAST_FAILED and len(failed) == len(partners):
        return "fail", f"it fails with all of {len(failed)} partners, {len(good)} of whom pass with others", _FIX_HOST
    known = f"{len(failed)} of {len(partners)} pairs fail, {len(good)} of them with partners who pass with others"
    return "unknown", f"no pair with it passes: {known}; {_LEAST_FAILED} such partners and no other answer would prove it", _FIX_AGAIN
