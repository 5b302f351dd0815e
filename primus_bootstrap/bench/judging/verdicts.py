"""Evaluate the results of a bench: a verdict for each series and device, and the benchmarks to run again. Pure functions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.judging.criteria import CriterionResult, NotApplicable, floor_criterion, history_criterion, peer_criterion
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.rerun import Rerun, RerunRequest, plan_reruns
from primus_bootstrap.bench.judging.samples import from_level, make_samples, sort_results
from primus_bootstrap.core.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.judging.criteria import Criterion
    from primus_bootstrap.bench.judging.floors import Floor, Floors
    from primus_bootstrap.bench.judging.samples import GroupKey, Sample, SampleSet
    from primus_bootstrap.bench.reason_codes import Code
    from primus_bootstrap.bench.results.history import History
    from primus_bootstrap.bench.results.reader import Result

WORST_FIRST: tuple[Outcome, ...] = ("fail", "unknown", "pass", "skipped")

_FIX_SLOW = "check the node's other checks (clocks, power limit, temperature, link width, other programs on its CPUs), then bench it again"
_FIX_WRONG = "take the device out of service and bench it again; replace it if its results are wrong again"
_FIX_RERUN = "bench it again"
_FIX_COMPARISON = "bench more hosts of this model together, or bench this host until it has a history"


class EvaluatedValue(NamedTuple):
    """One value with its verdict; `floor` is None if there is none."""

    key: GroupKey
    sample: Sample
    floor: float | None
    verdict: Outcome


@dataclass(frozen=True, slots=True)
class BenchEvaluation:
    """The evaluation of a bench."""

    verdicts: tuple[Verdict, ...]  # all verdicts
    hosts: Mapping[str, Outcome]  # the worst verdict of each host
    reruns: tuple[Rerun, ...]  # benchmarks to run again
    values: tuple[EvaluatedValue, ...]  # every evaluated value
    codes: Mapping[Verdict, Code]  # codes of unknown verdicts. An unknown verdict without a code got no answer.


def worst_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst outcome; `unknown` if there is none."""
    given = set(outcomes)
    return next((outcome for outcome in WORST_FIRST if outcome in given), "unknown")


def evaluate_results(  # noqa: PLR0913 - all inputs of an evaluation; by name
    results: Iterable[Result],
    *,
    floors: Floors,
    history: History,
    settings: JudgingSettings | None = None,
    hosts: Sequence[str] = (),
    others: Sequence[Verdict] = (),
    rounds_done: int = 0,
) -> BenchEvaluation:
    """Evaluate the results of one bench, all rounds together.

    Args:
        results: Results of all hosts and rounds; a duplicate line counts once.
        hosts: The benched hosts. A host without a result of a benchmark that most others gave is `unknown`.
        others: Further verdicts on the hosts: unreadable lines, node checks.
        rounds_done: Number of rounds of reruns so far.
    """
    settings = settings or JudgingSettings()
    samples = sort_results(results)
    evaluation = _Evaluation(samples, floors, history, settings)
    for key, runs in samples.groups.items():
        evaluation.add_group(key, make_samples(key, runs))
    evaluation.add_wrong_results()
    evaluation.add_errors()
    evaluation.add_missing(hosts, others)
    verdicts = (*evaluation.verdicts, *others)
    by_host: dict[str, set[Outcome]] = {host: set() for host in hosts}
    for verdict in verdicts:
        # A verdict on several hosts ("a,b") counts for none of them.
        if verdict.host and "," not in verdict.host:
            by_host.setdefault(verdict.host, set()).add(verdict.verdict)
    return BenchEvaluation(
        verdicts,
        {host: worst_of(outcomes) for host, outcomes in by_host.items()},
        plan_reruns(evaluation.requests, settings, rounds_done=rounds_done),
        tuple(evaluation.values),
        evaluation.codes,
    )


def _chances(samples: SampleSet, settings: JudgingSettings) -> dict[str, float]:
    """Return by host the accepted error of one comparison, so that all comparisons of the host together stay within the limit."""
    counts = Counter(host for runs in samples.groups.values() for host, _ in runs)
    return {host: settings.false_flag_percent / 100 / count for host, count in counts.items()}


class _Evaluation:
    """Collects verdicts, values and rerun requests."""

    def __init__(self, samples: SampleSet, floors: Floors, history: History, settings: JudgingSettings) -> None:
        self._samples = samples
        self._floors = floors
        self._history = history
        self._settings = settings
        self._chances = _chances(samples, settings)
        self.verdicts: list[Verdict] = []
        self.values: list[EvaluatedValue] = []
        self.requests: list[RerunRequest] = []
        self.codes: dict[Verdict, Code] = {}

    def add_group(self, key: GroupKey, samples: Sequence[Sample]) -> None:
        """Evaluate all samples of one series, model and set of versions."""
        floor = self._floors.find(key.series, key.model)
        criteria: tuple[Criterion, ...] = (
            _group_floor_criterion(key, samples, floor, self._settings),
            peer_criterion(key, samples, self._history, self._chances, self._settings),
            history_criterion(key, samples, self._history, self._chances, self._settings),
        )
        series = key.series.text()
        first = len(self.requests)
        for sample in samples:
            outcome = self._add_sample(key, series, sample, [criterion(sample) for criterion in criteria])
            self.values.append(EvaluatedValue(key, sample, floor.value if floor else None, outcome))
        undecided = any(request.error and request.repeats >= self._settings.minimum_repeats for request in self.requests[first:])
        if undecided and len({sample.host for sample in samples}) < self._settings.few_hosts:
            # With few peers, the noise of the others is part of the uncertainty about one.
            reason = f"{series}: few peers, and one of them is undecided"
            self.requests += [
                RerunRequest(sample.host, key.series.benchmark, sample.repeats, 0.0, sample.error, reason) for sample in samples
            ]

    def _add_sample(self, key: GroupKey, series: str, sample: Sample, results: Sequence[CriterionResult | NotApplicable]) -> Outcome:
        applied = [result for result in results if isinstance(result, CriterionResult)]
        missing = [result for result in results if isinstance(result, NotApplicable)]
        decisive = _decisive(applied)
        outcome: Outcome = decisive.outcome if decisive else "unknown"
        few = sample.repeats < self._settings.minimum_repeats
        reason, fix = decisive.reason if decisive else "", ""
        if few and outcome != "fail":
            outcome, fix = "unknown", _FIX_RERUN
            reason = f"{sample.repeats} repeats, at least {self._settings.minimum_repeats} are needed"
        elif decisive is None:
            reason, fix = "nothing to compare with: " + "; ".join(result.reason for result in missing), _FIX_COMPARISON
        elif outcome != "pass":
            fix = _FIX_SLOW if outcome == "fail" else _FIX_RERUN
        elif notable := [result.reason for result in missing if result.notable]:
            reason = "without its peers: " + "; ".join(notable)
        if outcome == "unknown" and (few or (decisive is not None and decisive.rerun_helps)):
            gap, error = (decisive.gap, decisive.error) if decisive else (0.0, 0.0)
            self.requests.append(RerunRequest(sample.host, key.series.benchmark, sample.repeats, gap, error, f"{series}: {reason}"))
        sources = [decisive.source] if decisive and outcome != "pass" else [result.source for result in applied]
        verdict = Verdict(
            check=f"bench_{key.series.benchmark}",
            host=sample.host,
            verdict=outcome,
            expected=_expected(series, key, decisive),
            found=f"{sample.value:.5g}",
            unit=key.unit,
            source="; ".join(sources),
            reason=reason,
            fix=fix,
            device=sample.device,
            serial=sample.serial,
            started=sample.started,
            seconds=sample.seconds,
        )
        self.verdicts.append(verdict)
        code: Code | None = decisive.code if decisive else "no_reference"
        if outcome == "unknown" and code and not few:
            self.codes[verdict] = code
        return outcome

    def add_wrong_results(self) -> None:
        """Add a failure for each wrong result; a later correct run does not remove it."""
        for result in self._samples.wrong:
            reason = "the result is wrong" if result.series.benchmark != "trial" else "the loss does not fall, or is not a number"
            self._add_result(result, "fail", "a correct result", reason, _FIX_WRONG)

    def add_errors(self) -> None:
        """Add an unknown verdict and a rerun for each error without a later success."""
        for result in self._samples.errors:
            self._add_result(result, "unknown", "a value", result.error, _FIX_RERUN)
            self.requests.append(RerunRequest(result.host, result.series.benchmark, result.repeats, 0.0, 0.0, result.error))

    def _add_result(self, result: Result, outcome: Outcome, expected: str, reason: str, fix: str) -> None:
        self.verdicts.append(
            Verdict(
                check=f"bench_{result.series.benchmark}",
                host=result.host,
                verdict=outcome,
                expected=f"{result.series.text()}: {expected}",
                found="" if result.value is None else f"{result.value:.5g}",
                unit=result.unit,
                source="the benchmark itself",
                reason=reason,
                fix=fix,
                device=result.device,
                serial=result.serial,
                started=result.started,
                seconds=result.seconds,
            )
        )

    def add_missing(self, hosts: Sequence[str], others: Sequence[Verdict]) -> None:
        """Add unknown verdicts for hosts and devices without a result where most hosts gave one.

        A host is left out if `others` already contain a verdict on the benchmark.
        """
        given: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for key, runs in self._samples.groups.items():
            for host, device in runs:
                if "," not in host:
                    given[key.series.benchmark][host].add(device)
        with_verdict = {(verdict.check, verdict.host, verdict.device) for verdict in self.verdicts}
        explained = {(verdict.check, verdict.host) for verdict in (*self.verdicts, *others)}
        for benchmark, by_host in given.items():
            check = f"bench_{benchmark}"
            all_hosts = set(hosts) | by_host.keys()
            if 2 * len(by_host) <= len(all_hosts):
                continue
            counts = Counter(device for devices in by_host.values() for device in devices)
            usual = {device for device, count in counts.items() if 2 * count > len(by_host)}
            for host in sorted(all_hosts):
                missing = usual - by_host[host] if host in by_host else {""} if (check, host) not in explained else set()
                lost = sorted(device for device in missing if not {(check, host, device), (check, host, "")} & with_verdict)
                if lost:
                    self._add_lost(host, benchmark, lost)

    def _add_lost(self, host: str, benchmark: str, devices: Sequence[str]) -> None:
        for device in devices:
            self.verdicts.append(
                Verdict(
                    check=f"bench_{benchmark}",
                    host=host,
                    verdict="unknown",
                    expected="a result, as from the other hosts",
                    source="the other hosts of this bench",
                    reason=f"no result of {f'device {device}' if device else 'the host'}: it was lost, or the benchmark did not finish",
                    fix="check that it is reachable and read the output of the benchmark, then bench it again",
                    device=device,
                )
            )
        self.requests.append(RerunRequest(host, benchmark, 0, 0.0, 0.0, "no result"))


def _group_floor_criterion(key: GroupKey, samples: Sequence[Sample], floor: Floor | None, settings: JudgingSettings) -> Criterion:
    """Return the comparison with the floor. If most hosts are below it, no host fails: the cause is shared, or the floor is wrong."""
    if floor is None:
        no_floor = NotApplicable(f"no floor for {key.model or 'this model'} and these sizes")
        return lambda _: no_floor
    compare_with_floor = floor_criterion(floor, key.better)
    results = {(sample.host, sample.device): compare_with_floor(sample) for sample in samples}
    hosts = {sample.host for sample in samples}
    below = {host for (host, _), result in results.items() if result.outcome == "fail"}
    if len(hosts) < settings.minimum_hosts or 100 * len(below) <= settings.max_slow_percent * len(hosts):
        return lambda sample: results[sample.host, sample.device]
    reason = f"{len(below)} of {len(hosts)} hosts are below the floor: the cause is shared, or the floor is wrong for them"

    def criterion(sample: Sample) -> CriterionResult:
        result = results[sample.host, sample.device]
        if result.outcome != "fail":
            return result
        return result._replace(outcome="unknown", reason=reason, rerun_helps=False, code="shared")

    return criterion


def _decisive(results: Sequence[CriterionResult]) -> CriterionResult | None:
    """Return the worst result; of passes, the one with the highest limit."""
    for outcome in ("fail", "unknown"):
        for result in results:
            if result.outcome == outcome:
                return result
    return max(results, key=lambda result: result.limit) if results else None


def _expected(series: str, key: GroupKey, result: CriterionResult | None) -> str:
    if result is None or not math.isfinite(result.limit):
        return series
    return f"{series}: at {'least' if key.better == 'higher' else 'most'} {from_level(result.limit, key.unit, key.better):.5g}"
