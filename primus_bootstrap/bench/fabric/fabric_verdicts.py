"""Turn the results of runs over a fabric into verdicts on hosts and paths, named `fabric_…`.

A verdict on a path contains both host names (`gpu1,gpu2`). It is never `fail`, and counts for neither host alone.
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
    from primus_bootstrap.bench.reason_codes import Code

_OUTCOMES: dict[State, tuple[Outcome, Code | None]] = {
    "pass": ("pass", None),
    "fail": ("fail", None),
    "suspect": ("unknown", "suspect"),
    "unsteady": ("unknown", "unsteady"),
    "large": ("unknown", "large"),
    "unknown": ("unknown", None),
}
_FIX_HOST = "check its network ports, cables and switch ports (`primus-cli preflight --checks network`), then bench it again"
_FIX_PATH = "check the cables and switches between the two hosts; each of them passes with others"
FIX_RERUN = "bench it again"
FIX_MORE = "bench more hosts together: 4 hosts have enough pairs to compare"
_FIX_LARGE = (
    "compare the bus bandwidth of groups by size; common causes: ring latency, TCP instead of RDMA, uplinks that too many hosts share"
)
_MIN_FAILED = 2
_NO_VERDICTS: Mapping[Pair, GroupVerdict] = MappingProxyType({})


class FabricVerdicts(NamedTuple):
    """Verdicts, and the codes of unknown ones."""

    verdicts: tuple[Verdict, ...]
    codes: Mapping[Verdict, Code]


class _Finding(NamedTuple):
    """The result for a host or a path."""

    outcome: Outcome
    reason: str
    fix: str
    code: Code | None


def bisection_verdicts(result: BisectionResult, *, started: float, seconds: float) -> FabricVerdicts:
    """Return a verdict for each host and each suspect path, and one without a host if large groups fail.

    A single host is skipped, because it has no fabric.
    """
    source = f"bisection of {len(result.hosts)} hosts in {result.runs} runs"
    single = len(result.hosts) == 1
    verdicts = [_verdict(state, source, started, seconds, single=single) for state in (*result.hosts, *result.paths)]
    if result.largest is not None:
        verdicts.append((_large_group_verdict(result, source, started, seconds), "large"))
    return FabricVerdicts(tuple(verdict for verdict, _ in verdicts), {verdict: code for verdict, code in verdicts if code})


def _verdict(state: PathState, source: str, started: float, seconds: float, *, single: bool) -> tuple[Verdict, Code | None]:
    outcome, code = ("skipped", None) if single else _OUTCOMES[state.state]
    fix = _FIX_PATH if len(state.hosts) > 1 else _FIX_HOST if state.state in ("fail", "suspect") else FIX_RERUN
    verdict = Verdict(
        check="fabric_bisection",
        host=",".join(state.hosts),
        verdict=outcome,
        expected="groups pass with it as they pass without it" if len(state.hosts) == 1 else "the two hosts pass together",
        found=state.state,
        source=source,
        reason=f"suspect: {state.reason}" if code == "suspect" else state.reason,
        fix="" if outcome in ("pass", "skipped") else fix,
        started=started,
        seconds=seconds,
    )
    return verdict, code


def _large_group_verdict(result: BisectionResult, source: str, started: float, seconds: float) -> Verdict:
    return Verdict(
        check="fabric_bisection",
        host="",
        verdict="unknown",
        expected=f"groups of up to {len(result.hosts)} hosts pass",
        found=f"{result.largest}",
        unit="hosts",
        source=source,
        reason=f"groups of more than {result.largest} hosts fail, whichever hosts are in them; smaller groups were run instead",
        fix=_FIX_LARGE,
        started=started,
        seconds=seconds,
    )


def pair_verdicts(
    outcomes: Mapping[Pair, Outcome], *, started: float, seconds: float, group_verdicts: Mapping[Pair, GroupVerdict] = _NO_VERDICTS
) -> FabricVerdicts:
    """Return verdicts on hosts and paths from the outcomes of pairs.

    A host fails if it fails with all of its partners, and they pass with others. If a pair fails although both hosts pass with others,
    the path is suspect; if it failed once and passed once, the path is unsteady. A host without a known outcome, or with partners that
    pass with no host, is unknown.

    Args:
        outcomes: The outcome of each pair, all its runs together.
        started: Start of the first run (seconds since the epoch).
        seconds: Duration of all runs.
        group_verdicts: Reasons and codes of pairs.
    """
    by_host: dict[str, dict[str, Outcome]] = defaultdict(dict)
    verdicts_of: dict[str, list[GroupVerdict]] = defaultdict(list)
    for (one, other), outcome in outcomes.items():
        by_host[one][other] = by_host[other][one] = outcome
        for host in (one, other):
            verdicts_of[host] += [group_verdicts[one, other]] if (one, other) in group_verdicts else []
    good = {host for host, partners in by_host.items() if "pass" in partners.values()}
    findings = {host: _host_finding(partners, verdicts_of[host], good) for host, partners in by_host.items()}
    for (one, other), outcome in outcomes.items():
        if {one, other} <= good and (path := _path_finding(outcome, group_verdicts.get((one, other)))):
            findings[f"{one},{other}"] = path
    verdicts: list[Verdict] = []
    codes: dict[Verdict, Code] = {}
    for host, (outcome, reason, fix, code) in findings.items():
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


def _host_finding(partners: Mapping[str, Outcome], verdicts: Sequence[GroupVerdict], good: set[str]) -> _Finding:
    outcome, reason, fix = _host_outcome(partners, good)
    relevant = [verdict for verdict in verdicts if (verdict.answer == "pass") == (outcome == "pass")]
    code = _common_code(relevant)
    if outcome == "pass" and code == "no_reference":
        return _Finding("unknown", f"it works with {len(relevant)} partners; {relevant[0].reason}", FIX_MORE, code)
    if outcome != "pass" and relevant:
        reason = f"{reason}; {relevant[0].reason}"
    return _Finding(outcome, reason, fix, code if outcome == "unknown" else None)


def _path_finding(outcome: Outcome, verdict: GroupVerdict | None) -> _Finding | None:
    """Return the fault of the path between two hosts that pass with others; None if there is none."""
    if outcome == "fail":
        return _Finding("unknown", "suspect: the two hosts fail together, and each passes with others", _FIX_PATH, "suspect")
    if verdict and verdict.code == "unsteady":
        return _Finding("unknown", f"unsteady: {verdict.reason}", _FIX_PATH, "unsteady")
    return None


def _common_code(verdicts: Sequence[GroupVerdict]) -> Code | None:
    """Return the code that all pairs of a host have; None if they differ or one has none."""
    codes = {verdict.code for verdict in verdicts}
    return codes.pop() if len(codes) == 1 else None


def _host_outcome(partners: Mapping[str, Outcome], good: set[str]) -> tuple[Outcome, str, str]:
    """Return outcome, reason and fix."""
    if "pass" in partners.values():
        return "pass", "", ""
    failed = [partner for partner, outcome in partners.items() if outcome == "fail"]
    good_failed = [partner for partner in failed if partner in good]
    if len(good_failed) >= _MIN_FAILED and len(failed) == len(partners):
        return "fail", f"it fails with all of its {len(failed)} partners, and {len(good_failed)} of them pass with others", _FIX_HOST
    counts = f"{len(failed)} of {len(partners)} pairs fail, {len(good_failed)} of them with partners that pass with others"
    return "unknown", f"no pair with it passes: {counts}; at least {_MIN_FAILED} such partners and no other answer are a proof", FIX_RERUN
