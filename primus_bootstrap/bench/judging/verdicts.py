"""Judge what was measured: a verdict a series and host or device, an overall verdict a host, and what to measure again. Pure functions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.judging.criteria import CriterionResult, NotApplicable, by_floor, by_history, by_peers
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.rerun import Rerun, RerunRequest, follow_up
from primus_bootstrap.bench.judging.samples import from_level, make_members, sort_results
from primus_bootstrap.core.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from primus_bootstrap.bench.judging.floors import Floor, Floors
    from primus_bootstrap.bench.judging.reason_codes import Code
    from primus_bootstrap.bench.judging.samples import GroupKey, Sample, SampleSet
    from primus_bootstrap.bench.results.history import History
    from primus_bootstrap.bench.results.reader import Result, Series

_FIX_SLOW = "look at the node's other checks (clocks, power limit, temperature, link width, neighbours on its CPUs), then bench it again"
_FIX_WRONG = "take the device out of service: it computes wrongly; exchange it where a second run says the same"
_FIX_AGAIN = "bench it again"
_FIX_YARDSTICK = "bench more hosts of this model at once, or bench this one until it has a history"


class JudgedValue(NamedTuple):
    """One value with what it was held against; `floor` is None where there is none. The verdict says the rest."""

    series: Series
    unit: str
    model: str
    stack: tuple[str, ...]
    host: str
    device: str
    serial: str
    value: float
    error: float
    repeats: int
    floor: float | None
    verdict: Outcome


@dataclass(frozen=True, slots=True)
class BenchEvaluation:
    """All verdicts, the overall verdict of each host, what to measure again, and every value that was judged.

    `codes` says of unknown verdicts why, where a word says it: those that have none got no answer.
    """

    verdicts: tuple[Verdict, ...]
    hosts: Mapping[str, Outcome]
    again: tuple[Rerun, ...]
    values: tuple[JudgedValue, ...]
    codes: Mapping[Verdict, Code]


def overall(outcomes: Iterable[Outcome]) -> Outcome:
    """Return what verdicts say together: fail if one fails, else unknown if one is unknown, else pass; skipped where all are skipped."""
    found = set(outcomes)
    for outcome in ("fail", "unknown", "pass"):
        if outcome in found:
            return outcome
    return "skipped" if found else "unknown"


def judge(  # noqa: PLR0913 - the whole of what a judgement rests on; all by name
    results: Iterable[Result],
    *,
    floors: Floors,
    history: History,
    settings: JudgingSettings | None = None,
    hosts: Sequence[str] = (),
    others: Sequence[Verdict] = (),
    rounds_done: int = 0,
) -> BenchEvaluation:
    """Judge the results of one bench, all rounds together.

    Args:
        results: Of every host and round; a line that is in there twice counts once.
        floors: The floors of models.
        history: What was measured before.
        settings: The minimums and limits.
        hosts: Who was benched. One that gave no result of a benchmark that others gave is `unknown`.
        others: Verdicts that were made elsewhere: lines that could not be read, checks of the nodes. They count for the hosts.
        rounds_done: How often was measured again.
    """
    settings = settings or JudgingSettings()
    found = sort_results(results)
    bench = _Bench(found, floors, history, settings, _chances(found, settings))
    for key, runs in found.groups.items():
        bench.judge_group(key, make_members(key, runs))
    bench.say_wrong()
    bench.say_errors()
    bench.say_missing(hosts, others)
    verdicts = (*bench.verdicts, *others)
    by_host: dict[str, set[Outcome]] = {host: set() for host in hosts}
    for verdict in verdicts:
        # A group of hosts ("a,b") is nobody's verdict alone.
        if verdict.host and "," not in verdict.host:
            by_host.setdefault(verdict.host, set()).add(verdict.verdict)
    return BenchEvaluation(
        verdicts,
        {host: overall(outcomes) for host, outcomes in by_host.items()},
        follow_up(bench.wishes, settings, rounds_done=rounds_done),
        tuple(bench.values),
        bench.codes,
    )


def _chances(found: SampleSet, settings: JudgingSettings) -> dict[str, float]:
    """Return by host how likely each single comparison may be wrong, so that all of a host's together stay within the limit."""
    counts = Counter(host for runs in found.groups.values() for host, _ in runs)
    return {host: settings.false_flag_percent / 100 / count for host, count in counts.items()}


class _Bench:
    """One judging: what is known at its start, and what it has said so far."""

    def __init__(self, found: SampleSet, floors: Floors, history: History, settings: JudgingSettings, chances: Mapping[str, float]) -> None:
        self._found = found
        self._floors = floors
        self._history = history
        self._settings = settings
        self._chances = chances
        self.verdicts: list[Verdict] = []
        self.values: list[JudgedValue] = []
        self.wishes: list[RerunRequest] = []
        self.codes: dict[Verdict, Code] = {}

    def judge_group(self, key: GroupKey, members: Sequence[Sample]) -> None:
        """Judge everybody who was measured in one series, on one model with one set of versions."""
        floor = self._floors.find(key.series, key.model)
        sticks = (
            _floor_stick(key, members, floor, self._settings),
            by_peers(key, members, self._history, self._chances, self._settings),
            by_history(key, members, self._history, self._chances, self._settings),
        )
        text = key.series.text()
        wishes = len(self.wishes)
        for member in members:
            said = [stick(member) for stick in sticks]
            outcome = self._judge_member(key, text, member, said)
            self.values.append(
                JudgedValue(
                    series=key.series,
                    unit=key.unit,
                    model=key.model,
                    stack=key.stack,
                    host=member.host,
                    device=member.device,
                    serial=member.serial,
                    value=member.value,
                    error=member.error,
                    repeats=member.repeats,
                    floor=floor.value if floor else None,
                    verdict=outcome,
                )
            )

        noisy = any(wish.error and wish.repeats >= self._settings.minimum_repeats for wish in self.wishes[wishes:])
        if noisy and len({member.host for member in members}) < self._settings.few_hosts:
            self._wish_all(key, members)

    def _wish_all(self, key: GroupKey, members: Sequence[Sample]) -> None:
        """Ask for everybody again: among few peers the doubt about one is the noise of the others."""
        reason = f"{key.series.text()}: few peers, and one of them is undecided"
        self.wishes += [RerunRequest(member.host, key.series.benchmark, member.repeats, 0.0, member.error, reason) for member in members]

    def _judge_member(self, key: GroupKey, text: str, member: Sample, said: Sequence[CriterionResult | NotApplicable]) -> Outcome:
        spoken = [each for each in said if isinstance(each, CriterionResult)]
        outcome, decisive = _decide(spoken)
        few = member.repeats < self._settings.minimum_repeats
        reason, fix = decisive.reason if decisive else "", ""
        if few and outcome != "fail":
            outcome, fix = "unknown", _FIX_AGAIN
            reason = f"{member.repeats} repeats, at least {self._settings.minimum_repeats} are needed"
        elif decisive is None:
            reason, fix = "no yardstick: " + "; ".join(each.reason for each in said if isinstance(each, NotApplicable)), _FIX_YARDSTICK
        elif outcome != "pass":
            fix = _FIX_SLOW if outcome == "fail" else _FIX_AGAIN
        elif quiet := [each.reason for each in said if isinstance(each, NotApplicable) and each.notable]:
            reason = "without its peers: " + "; ".join(quiet)
        if outcome == "unknown" and (few or (decisive is not None and decisive.settles)):
            gap, error = (decisive.gap, decisive.error) if decisive else (0.0, 0.0)
            self.wishes.append(RerunRequest(member.host, key.series.benchmark, member.repeats, gap, error, f"{text}: {reason}"))
        sources = [decisive.source] if decisive and outcome != "pass" else [each.source for each in spoken]
        verdict = Verdict(
            check=f"bench_{key.series.benchmark}",
            host=member.host,
            verdict=outcome,
            expected=_expected(text, key, decisive),
            found=f"{member.value:.5g}",
            unit=key.unit,
            source="; ".join(sources),
            reason=reason,
            fix=fix,
            device=member.device,
            serial=member.serial,
            started=member.started,
            seconds=member.seconds,
        )
        self.verdicts.append(verdict)
        code: Code | None = decisive.code if decisive else "no_yardstick"
        if outcome == "unknown" and code and not few:
            self.codes[verdict] = code
        return outcome

    def say_wrong(self) -> None:
        """Fail what computed wrongly; no other run makes that good."""
        for result in self._found.wrong:
            reason = "the result is wrong" if result.series.benchmark != "trial" else "the loss does not fall, or is not a number"
            self._say(result, "fail", f"{result.series.text()}: a correct result", reason, _FIX_WRONG)

    def say_errors(self) -> None:
        """Say of every error that no later run made good that nothing is known; the benchmark runs again."""
        for result in self._found.errors:
            self._say(result, "unknown", f"{result.series.text()}: a value", result.error, _FIX_AGAIN)
            self.wishes.append(RerunRequest(result.host, result.series.benchmark, result.repeats, 0.0, 0.0, result.error))

    def _say(self, result: Result, outcome: Outcome, expected: str, reason: str, fix: str) -> None:
        self.verdicts.append(
            Verdict(
                check=f"bench_{result.series.benchmark}",
                host=result.host,
                verdict=outcome,
                expected=expected,
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

    def say_missing(self, hosts: Sequence[str], others: Sequence[Verdict]) -> None:
        """Say `unknown` of hosts and devices that gave nothing where the others did: what is lost is not passed over.

        Not of a host of which `others` say already why it gave nothing.
        """
        given: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for key, runs in self._found.groups.items():
            for host, device in runs:
                if "," not in host:
                    given[key.series.benchmark][host].add(device)
        known = {(verdict.check, verdict.host, verdict.device) for verdict in self.verdicts}
        told = {(verdict.check, verdict.host) for verdict in (*self.verdicts, *others)}
        for benchmark, by_host in given.items():
            everybody = set(hosts) | by_host.keys()
            if 2 * len(by_host) <= len(everybody):
                continue
            counts = Counter(device for devices in by_host.values() for device in devices)
            usual = {device for device, count in counts.items() if 2 * count > len(by_host)}
            for host in sorted(everybody):
                missing = usual - by_host[host] if host in by_host else {""} if (f"bench_{benchmark}", host) not in told else set()
                lost = sorted(device for device in missing if not {(f"bench_{benchmark}", host, one) for one in (device, "")} & known)
                if lost:
                    self._say_lost(host, benchmark, lost)

    def _say_lost(self, host: str, benchmark: str, devices: Sequence[str]) -> None:
        for device in devices:
            what = f"device {device}" if device else "the host"
            verdict = Verdict(
                check=f"bench_{benchmark}",
                host=host,
                verdict="unknown",
                expected="a result, as from the other hosts",
                source="the other hosts of this bench",
                reason=f"no result of {what}: it was lost, or the benchmark did not end",
                fix="see whether it is reachable and what the benchmark printed, then bench it again",
                device=device,
            )
            self.verdicts.append(verdict)
        self.wishes.append(RerunRequest(host, benchmark, 0, 0.0, 0.0, "no result"))


def _floor_stick(
    key: GroupKey, members: Sequence[Sample], floor: Floor | None, settings: JudgingSettings
) -> Callable[[Sample], CriterionResult | NotApplicable]:
    """Return what the floor says of each member; where most hosts are below it, they share the cause or it is wrong: it convicts nobody."""
    if floor is None:
        silent = NotApplicable(f"no floor for {key.model or 'this model'} and these sizes")
        return lambda _: silent
    against = by_floor(floor, key.better)
    said = {(member.host, member.device): against(member) for member in members}
    hosts, below = {member.host for member in members}, {host for (host, _), each in said.items() if each.outcome == "fail"}
    if len(hosts) < settings.minimum_hosts or 100 * len(below) <= settings.most_slow_percent * len(hosts):
        return lambda member: said[member.host, member.device]
    common = f"{len(below)} of {len(hosts)} hosts are below the floor: rather something that they share, or the floor is wrong for them"

    def say(member: Sample) -> CriterionResult:
        each = said[member.host, member.device]
        return each._replace(outcome="unknown", reason=common, settles=False, code="shared") if each.outcome == "fail" else each

    return say


def _decide(spoken: Sequence[CriterionResult]) -> tuple[Outcome, CriterionResult | None]:
    """Return the worst of what yardsticks say, and which says it; of passes, the one that asks for most."""
    for outcome in ("fail", "unknown"):
        for each in spoken:
            if each.outcome == outcome:
                return outcome, each
    return ("pass", max(spoken, key=lambda each: each.limit)) if spoken else ("unknown", None)


def _expected(text: str, key: GroupKey, said: CriterionResult | None) -> str:
    if said is None or not math.isfinite(said.limit):
        return text
    return f"{text}: at {'least' if key.better == 'higher' else 'most'} {from_level(said.limit, key.unit, key.better):.5g}"
