"""Choose the groups of the next round, and evaluate all runs over several hosts. Pure functions over the finished runs.

Pairs run first, in rounds. The bisection follows: it is replayed from the answers so far, and the first group without an answer runs
next. A host that is lost or gets a job takes no further part.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from primus_bootstrap.bench.fabric.bisection import bisect_fabric
from primus_bootstrap.bench.fabric.fabric_verdicts import FIX_MORE, FIX_RERUN, FabricVerdicts, bisection_verdicts, pair_verdicts
from primus_bootstrap.bench.fabric.group_speeds import GroupVerdict, evaluate_group, evaluate_pairs, pair_medians, undecided_pairs
from primus_bootstrap.bench.fabric.pair_rounds import chosen_rounds, round_robin
from primus_bootstrap.bench.results.group_records import GroupRun, GroupRunResult
from primus_bootstrap.core.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.bench.fabric.pair_rounds import Pair
    from primus_bootstrap.bench.judging.floors import Floors
    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
    from primus_bootstrap.bench.quarantine.policy import Step
    from primus_bootstrap.bench.reason_codes import Code
    from primus_bootstrap.bench.results.group_records import Answer


@dataclass(frozen=True, slots=True)
class FabricSchedule:
    """The runs so far, and what the next round depends on."""

    steps: Mapping[int, Step]  # the steps over several hosts, by their number in the tier
    hosts: tuple[str, ...]  # the hosts that took part at the start
    locations: Mapping[str, str] = field(default_factory=dict)  # rack or leaf switch of each host
    models: Mapping[str, str] = field(default_factory=dict)  # device models of each host
    left: Mapping[str, str] = field(default_factory=dict)  # why a host no longer takes part
    runs: tuple[GroupRunResult, ...] = ()  # the finished runs
    at_once: int = 0  # number of hosts that may run at the same time; 0 for any number
    given_up: str = ""  # why no further groups run; empty if they do

    @property
    def present(self) -> tuple[str, ...]:
        """The hosts that still take part."""
        return tuple(host for host in self.hosts if host not in self.left)

    def runs_of(self, number: int) -> tuple[GroupRunResult, ...]:
        """Return the runs of one step."""
        return tuple(run for run in self.runs if run.step == number)


class _MissingAnswerError(Exception):
    """The bisection needs the answer of a group that has not run."""

    def __init__(self, group: tuple[str, ...]) -> None:
        super().__init__(group)
        self.group = group


def find_locations(facts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the location of each host, as Slurm's topology uses it: its switch if any host states one, else its rack.

    If no host states either, all have one location.

    Args:
        facts: `switch` and `rack` by host; empty if not stated.
    """
    for name in ("switch", "rack"):
        if any(fact[name] for fact in facts.values()):
            return {host: fact[name] for host, fact in facts.items()}
    return dict.fromkeys(facts, "unplaced")


def next_runs(schedule: FabricSchedule, floors: Floors, settings: JudgingSettings) -> tuple[GroupRun, ...]:
    """Return the groups of the next round, with no host in two of them; nothing if all steps are finished.

    When all pairs have run, undecided ones run once more.
    """
    if schedule.given_up or len(schedule.present) < 2:
        return ()
    for number, step in schedule.steps.items():
        pairs = _planned_pairs(schedule, step) if step.over == "pairs" else _comparison_pairs(schedule, number, settings)
        runs = _first_open_round(schedule, number, pairs)
        if not runs and step.over == "pairs":
            runs = _second_runs(schedule, number, floors, settings)
        if runs:
            return runs
        if step.over == "fabric":
            try:
                bisect_fabric(schedule.present, _Answers(schedule, number, settings).probe)
            except _MissingAnswerError as missing:
                return (GroupRun(number, missing.group),)
    return ()


def _planned_pairs(schedule: FabricSchedule, step: Step) -> Iterator[tuple[Pair, ...]]:
    yield from chosen_rounds(schedule.hosts, schedule.locations, inside=step.inside, across=step.across)


def _comparison_pairs(schedule: FabricSchedule, number: int, settings: JudgingSettings) -> Iterator[tuple[Pair, ...]]:
    """Yield rounds of pairs until enough of them passed to compare larger groups with; at most twice as many as are needed.

    Yields nothing if there are too few hosts for enough pairs.
    """
    hosts, enough = schedule.present, settings.minimum_hosts
    if len(hosts) * (len(hosts) - 1) // 2 < enough:
        return
    passed = {frozenset(run.hosts) for run in schedule.runs_of(number) if run.answer == "pass"}
    planned: list[Pair] = []
    for pairs in round_robin(hosts):
        if len(planned) >= 2 * enough or sum(frozenset(pair) in passed for pair in planned) >= enough:
            return
        yield pairs
        planned += pairs


def _first_open_round(schedule: FabricSchedule, number: int, rounds: Iterator[tuple[Pair, ...]]) -> tuple[GroupRun, ...]:
    """Return the pairs of the first round that have not run and still can."""
    done = {frozenset(run.hosts) for run in schedule.runs_of(number)}
    for pairs in rounds:
        open_pairs = [pair for pair in pairs if frozenset(pair) not in done and not schedule.left.keys() & set(pair)]
        if open_pairs:
            return _limit(schedule, number, open_pairs)
    return ()


def _limit(schedule: FabricSchedule, number: int, pairs: Sequence[tuple[str, ...]]) -> tuple[GroupRun, ...]:
    """Return as many of the pairs as may run at the same time."""
    return tuple(GroupRun(number, pair) for pair in pairs[: max(1, schedule.at_once // 2) if schedule.at_once else None])


def _second_runs(schedule: FabricSchedule, number: int, floors: Floors, settings: JudgingSettings) -> tuple[GroupRun, ...]:
    """Return undecided pairs that still can run, with no host in two of them."""
    runs = schedule.runs_of(number)
    used = set(schedule.left)
    chosen: list[tuple[str, ...]] = []
    for pair in undecided_pairs(runs, _pair_group_verdicts(schedule, runs, floors, settings)):
        if used.isdisjoint(pair):
            chosen.append(pair)
            used.update(pair)
    return _limit(schedule, number, chosen)


def _pair_group_verdicts(
    schedule: FabricSchedule, runs: Sequence[GroupRunResult], floors: Floors, settings: JudgingSettings
) -> Mapping[tuple[str, ...], GroupVerdict]:
    return evaluate_pairs(runs, lambda hosts: _pair_kind(schedule, hosts), floors, settings)


class _Answers:
    """Replays the answers of one step's runs, in the order in which each group ran."""

    def __init__(self, schedule: FabricSchedule, number: int, settings: JudgingSettings) -> None:
        runs = schedule.runs_of(number)
        # Only the first run of each pair counts for the median: the bisection repeats those that failed.
        first = {frozenset(run.hosts): run for run in reversed(runs)}
        pairs = map(frozenset, chain.from_iterable(_comparison_pairs(schedule, number, settings)))
        self.medians = pair_medians([first[pair] for pair in pairs if pair in first], settings)
        self._given_up = schedule.given_up
        self._answers: dict[frozenset[str], deque[Answer]] = defaultdict(deque)
        for run in runs:
            self._answers[frozenset(run.hosts)].append(evaluate_group(run, self.medians, settings).answer)

    def probe(self, group: tuple[str, ...]) -> Answer:
        """Return the next answer of a group; `unknown` for a missing one if no further groups run."""
        answers = self._answers[frozenset(group)]
        if answers:
            return answers.popleft()
        if self._given_up:
            return "unknown"
        raise _MissingAnswerError(group)


def evaluate_fabric(schedule: FabricSchedule, floors: Floors, settings: JudgingSettings) -> FabricVerdicts:
    """Return the verdicts of all finished runs on hosts and paths."""
    found = [
        _evaluate_pairs_step(schedule, number, floors, settings)
        if step.over == "pairs"
        else _evaluate_bisection(schedule, number, settings)
        for number, step in schedule.steps.items()
    ]
    verdicts = tuple(chain.from_iterable(result.verdicts for result in found))
    return FabricVerdicts(verdicts, {verdict: code for result in found for verdict, code in result.codes.items()})


def _evaluate_pairs_step(schedule: FabricSchedule, number: int, floors: Floors, settings: JudgingSettings) -> FabricVerdicts:
    runs = schedule.runs_of(number)
    group_verdicts = {(pair[0], pair[1]): verdict for pair, verdict in _pair_group_verdicts(schedule, runs, floors, settings).items()}
    outcomes = {pair: verdict.answer for pair, verdict in group_verdicts.items()}
    result = pair_verdicts(outcomes, started=0.0, seconds=_total_seconds(runs), group_verdicts=group_verdicts)
    return _complete(schedule, "fabric_pairs", runs, result)


def _pair_kind(schedule: FabricSchedule, hosts: tuple[str, ...]) -> str:
    """Return what a pair's speed depends on: the models, and whether the path leaves the location."""
    inside = len({schedule.locations.get(host) or host for host in hosts}) == 1
    return f"{'inside' if inside else 'across'} {sorted(schedule.models.get(host, '') for host in hosts)}"


def _evaluate_bisection(schedule: FabricSchedule, number: int, settings: JudgingSettings) -> FabricVerdicts:
    runs = schedule.runs_of(number)
    if not runs:
        return _complete(schedule, "fabric_bisection", runs, FabricVerdicts((), {}))
    answers = _Answers(replace(schedule, given_up=schedule.given_up or "all runs are finished"), number, settings)
    found = bisect_fabric(schedule.present, answers.probe)
    result = bisection_verdicts(found, started=0.0, seconds=_total_seconds(runs))
    if not answers.medians:
        result = _with_unknown_speed(result, len(runs))
    return _complete(schedule, "fabric_bisection", runs, result)


def _with_unknown_speed(result: FabricVerdicts, runs: int) -> FabricVerdicts:
    """Turn passes into `unknown`, because their speed could not be evaluated."""
    verdicts: list[Verdict] = []
    codes = dict(result.codes)
    for verdict in result.verdicts:
        if verdict.verdict == "pass":
            reason = f"it works with the others ({runs} runs); there are too few pairs to compare its speed with"
            verdicts.append(replace(verdict, verdict="unknown", found="", reason=reason, fix=FIX_MORE))
            codes[verdicts[-1]] = "no_reference"
        else:
            verdicts.append(verdict)
    return FabricVerdicts(tuple(verdicts), codes)


def _complete(schedule: FabricSchedule, check: str, runs: Sequence[GroupRunResult], result: FabricVerdicts) -> FabricVerdicts:
    """Set the start times by the hosts' own clocks, and add `unknown` for hosts that left or never ran."""
    starts: dict[str, float] = {}
    for run in runs:
        for host, started in run.starts.items():
            starts[host] = min(started, starts.get(host, started))
    starts[""] = min(starts.values(), default=0.0)
    verdicts: list[Verdict] = []
    codes: dict[Verdict, Code] = {}
    evaluated = [verdict for verdict in result.verdicts if verdict.host not in schedule.left]
    missing = {host for host in schedule.present if host not in {verdict.host for verdict in evaluated}}
    reasons = {host: schedule.given_up or "no run with it was made" for host in schedule.present if host in missing}
    for original in evaluated:
        code = result.codes.get(original)
        verdict = replace(original, started=starts.get(original.host.split(",")[0], original.started))
        if schedule.given_up and verdict.verdict == "unknown" and code in (None, "unsteady"):
            # Groups that never ran have no answer, so the fabric looks unsteady.
            verdict, code = replace(verdict, reason=f"{schedule.given_up}; {verdict.reason}"), None
        verdicts.append(verdict)
        if code:
            codes[verdict] = code
    verdicts += [
        absent_verdict(check, host, "unknown", reason, starts.get(host, 0.0)) for host, reason in {**reasons, **schedule.left}.items()
    ]
    return FabricVerdicts(tuple(verdicts), codes)


def absent_verdict(check: str, host: str, outcome: str, reason: str, started: float = 0.0) -> Verdict:
    """Return the verdict on a host without runs: `skipped` or `unknown`."""
    return Verdict(
        check=check,
        host=host,
        verdict="skipped" if outcome == "skipped" else "unknown",
        expected="runs with other hosts",
        reason=reason,
        fix="" if outcome == "skipped" else FIX_RERUN,
        started=started,
    )


def _total_seconds(runs: Sequence[GroupRunResult]) -> float:
    return round(sum(run.seconds for run in runs), 3)
