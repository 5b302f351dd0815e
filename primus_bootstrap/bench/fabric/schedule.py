"""The course of a bench over several hosts: which groups run next, and what all runs together say. Pure functions over what has run.

Pairs come first, in rounds; then the fabric by bisection, which is played again from the answers so far each time: the first group
that has not run yet is the next one. A host that leaves (lost, or jobs came) takes no further part, and nobody else is blamed for it.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from primus_bootstrap.bench.fabric.bisection import bisect_fabric
from primus_bootstrap.bench.fabric.fabric_verdicts import FIX_MORE, FabricVerdicts, bisection_verdicts, pair_verdicts
from primus_bootstrap.bench.fabric.group_runs import GroupRun, GroupRunResult
from primus_bootstrap.bench.fabric.group_speeds import GroupVerdict, hold_against, in_doubt, judge_pairs, reference
from primus_bootstrap.bench.fabric.pair_rounds import chosen_rounds, round_robin
from primus_bootstrap.core.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.bench.fabric.bisection import Answer
    from primus_bootstrap.bench.fabric.pair_rounds import Pair
    from primus_bootstrap.bench.judging.floors import Floors
    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
    from primus_bootstrap.bench.judging.reason_codes import Code
    from primus_bootstrap.bench.quarantine.policy import Step

_FIX_AGAIN = "bench it again"


@dataclass(frozen=True, slots=True)
class FabricSchedule:
    """What is known so far.

    `steps` are those over several hosts, by their number in the tier. `hosts` took part from the start; `left` says why one does no
    longer. `places` are racks or leaf switches, `models` what devices a host has. `at_once`: so many hosts may run at the same time, 0
    for any number. `given_up` says why nothing more is run.
    """

    steps: Mapping[int, Step]
    hosts: tuple[str, ...]
    places: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    ran: tuple[GroupRunResult, ...] = ()
    at_once: int = 0
    given_up: str = ""

    @property
    def present(self) -> tuple[str, ...]:
        """Who still takes part."""
        return tuple(host for host in self.hosts if host not in self.left)

    def of(self, number: int) -> tuple[GroupRunResult, ...]:
        """Return the runs of one step."""
        return tuple(each for each in self.ran if each.run.step == number)


class _NotYetError(Exception):
    """The answer of a group is needed that has not run."""

    def __init__(self, group: tuple[str, ...]) -> None:
        super().__init__(group)
        self.group = group


def places_of(facts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return where each host is, as Slurm's topology has it: by switches where one is stated, else by racks, else by subnets.

    Args:
        facts: By host `switch`, `rack` and `address`, empty where they are not stated.
    """
    for name in ("switch", "rack"):
        if any(fact[name] for fact in facts.values()):
            return {host: fact[name] for host, fact in facts.items()}
    return {host: _subnet(fact["address"]) for host, fact in facts.items()}


def _subnet(address: str) -> str:
    """Return the /24 (IPv6: /64) of an address; one place for all host names."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unplaced"
    return str(ipaddress.ip_network(f"{parsed}/{24 if parsed.version == 4 else 64}", strict=False))


def next_runs(course: FabricSchedule, floors: Floors, settings: JudgingSettings) -> tuple[GroupRun, ...]:
    """Return the runs of the next round, no host in two of them; nothing where all is known that can be.

    Pairs that are in doubt when all have run are measured once more.
    """
    if course.given_up or len(course.present) < 2:
        return ()
    for number, step in course.steps.items():
        pairs = _planned(course, step) if step.over == "pairs" else _to_compare(course, number, settings)
        runs = _round(course, number, pairs) or (_once_more(course, number, floors, settings) if step.over == "pairs" else ())
        if runs:
            return runs
        if step.over == "fabric":
            try:
                bisect_fabric(course.present, _Answers(course, number, settings).probe)
            except _NotYetError as wanted:
                return (GroupRun(number, wanted.group),)
    return ()


def _planned(course: FabricSchedule, step: Step) -> Iterator[tuple[Pair, ...]]:
    yield from chosen_rounds(course.hosts, course.places, inside=step.inside, across=step.across)


def _to_compare(course: FabricSchedule, number: int, settings: JudgingSettings) -> Iterator[tuple[Pair, ...]]:
    """Yield the pairs whose speed larger groups are held against: enough of them, and as many again where some give none.

    Nothing where there are too few hosts for enough pairs.
    """
    hosts, enough = course.present, settings.minimum_hosts
    if len(hosts) * (len(hosts) - 1) // 2 < enough:
        return
    good = {frozenset(each.run.hosts) for each in course.of(number) if each.answer == "pass"}
    planned: list[Pair] = []
    for each in round_robin(hosts):
        if len(planned) >= 2 * enough or sum(frozenset(pair) in good for pair in planned) >= enough:
            return
        yield each
        planned += each


def _round(course: FabricSchedule, number: int, rounds: Iterator[tuple[Pair, ...]]) -> tuple[GroupRun, ...]:
    """Return the first pairs that have not run and still can, as many as may run at the same time."""
    done = {frozenset(each.run.hosts) for each in course.of(number)}
    for pairs in rounds:
        open_ = [pair for pair in pairs if frozenset(pair) not in done and not course.left.keys() & set(pair)]
        if open_:
            return _at_once(course, number, open_)
    return ()


def _at_once(course: FabricSchedule, number: int, pairs: Sequence[tuple[str, ...]]) -> tuple[GroupRun, ...]:
    """Return the first of these pairs, as many as may run at the same time."""
    return tuple(GroupRun(number, pair) for pair in pairs[: max(1, course.at_once // 2) if course.at_once else None])


def _once_more(course: FabricSchedule, number: int, floors: Floors, settings: JudgingSettings) -> tuple[GroupRun, ...]:
    """Return pairs in doubt that still can run, no host in two of them."""
    ran = course.of(number)
    taken = set(course.left)
    chosen: list[tuple[str, ...]] = []
    for pair in in_doubt(ran, _judge(course, ran, floors, settings)):
        if taken.isdisjoint(pair):
            chosen.append(pair)
            taken.update(pair)
    return _at_once(course, number, chosen)


def _judge(
    course: FabricSchedule, ran: Sequence[GroupRunResult], floors: Floors, settings: JudgingSettings
) -> Mapping[tuple[str, ...], GroupVerdict]:
    return judge_pairs(ran, lambda hosts: _alike(course, hosts), floors, settings)


class _Answers:
    """The answers of one step's runs, given out in the order in which each group ran."""

    def __init__(self, course: FabricSchedule, number: int, settings: JudgingSettings) -> None:
        # Each pair once: the search runs those again that it doubts, and they must not become the measure.
        first = {frozenset(each.run.hosts): each for each in reversed(course.of(number))}
        compared = chain.from_iterable(_to_compare(course, number, settings))
        self.medians = reference([first[pair] for pair in map(frozenset, compared) if pair in first], settings)
        self._given_up = course.given_up
        self._of: dict[frozenset[str], deque[Answer]] = defaultdict(deque)
        for ran in course.of(number):
            self._of[frozenset(ran.run.hosts)].append(hold_against(ran, self.medians, settings).answer)

    def probe(self, group: tuple[str, ...]) -> Answer:
        """Return the next answer of a group; where nothing more is run, what is missing is unknown."""
        said = self._of[frozenset(group)]
        if said:
            return said.popleft()
        if self._given_up:
            return "unknown"
        raise _NotYetError(group)


def conclude(course: FabricSchedule, floors: Floors, settings: JudgingSettings) -> FabricVerdicts:
    """Return what all runs say of the hosts that took part, and of paths. To be called when there is no next round."""
    found = [_of_pairs(course, number, floors, settings) if step.over == "pairs" else _of_fabric(course, number, settings)
             for number, step in course.steps.items()]  # fmt: skip
    verdicts = tuple(chain.from_iterable(each.verdicts for each in found))
    return FabricVerdicts(verdicts, {verdict: code for each in found for verdict, code in each.codes.items()})


def _of_pairs(course: FabricSchedule, number: int, floors: Floors, settings: JudgingSettings) -> FabricVerdicts:
    ran = course.of(number)
    judged: dict[Pair, GroupVerdict] = {(hosts[0], hosts[1]): said for hosts, said in _judge(course, ran, floors, settings).items()}
    told = pair_verdicts({pair: said.answer for pair, said in judged.items()}, started=0.0, seconds=_seconds(ran), said=judged)
    return _mend(course, "fabric_pairs", ran, told)


def _alike(course: FabricSchedule, hosts: tuple[str, ...]) -> str:
    """Return what a pair's speed depends on: the models, and whether the path leaves the rack."""
    inside = len({course.places.get(host) or host for host in hosts}) == 1
    return f"{'inside' if inside else 'across'} {sorted(course.models.get(host, '') for host in hosts)}"


def _of_fabric(course: FabricSchedule, number: int, settings: JudgingSettings) -> FabricVerdicts:
    ran = course.of(number)
    if not ran:
        return _mend(course, "fabric_bisection", ran, FabricVerdicts((), {}))
    answers = _Answers(replace(course, given_up=course.given_up or "asked for all"), number, settings)
    found = bisect_fabric(course.present, answers.probe)
    told = bisection_verdicts(found, started=0.0, seconds=_seconds(ran))
    if not answers.medians:
        told = _without_yardstick(told, len(ran))
    return _mend(course, "fabric_bisection", ran, told)


def _without_yardstick(told: FabricVerdicts, runs: int) -> FabricVerdicts:
    """Say of passes that nothing is known of their speed."""
    verdicts: list[Verdict] = []
    codes = dict(told.codes)
    for verdict in told.verdicts:
        if verdict.verdict == "pass":
            reason = f"it works with the others ({runs} runs); there are too few pairs to compare its speed with"
            verdicts.append(replace(verdict, verdict="unknown", found="", reason=reason, fix=FIX_MORE))
            codes[verdicts[-1]] = "no_yardstick"
        else:
            verdicts.append(verdict)
    return FabricVerdicts(tuple(verdicts), codes)


def _mend(course: FabricSchedule, check: str, ran: Sequence[GroupRunResult], told: FabricVerdicts) -> FabricVerdicts:
    """Give each verdict the time by its host's own clock; say unknown of who left, of who never ran, and of what was given up."""
    starts: dict[str, float] = {}
    for each in ran:
        for host, started in each.starts.items():
            starts[host] = min(started, starts.get(host, started))
    starts[""] = min(starts.values(), default=0.0)
    verdicts: list[Verdict] = []
    codes: dict[Verdict, Code] = {}
    kept = [verdict for verdict in told.verdicts if verdict.host not in course.left]
    missing = [host for host in course.present if host not in {verdict.host for verdict in kept}]
    reasons = {**dict.fromkeys(missing, course.given_up or "no run with it was made"), **course.left}
    for verdict in kept:
        code = told.codes.get(verdict)
        mended = replace(verdict, started=starts.get(verdict.host.split(",")[0], verdict.started))
        if course.given_up and mended.verdict == "unknown" and code in (None, "unsteady"):
            # Groups that never ran gave no answer, which looks like a restless fabric.
            mended, code = replace(mended, reason=f"{course.given_up}; {mended.reason}"), None
        verdicts.append(mended)
        if code:
            codes[mended] = code
    verdicts += [absent(check, host, "unknown", reason, starts.get(host, 0.0)) for host, reason in reasons.items()]
    return FabricVerdicts(tuple(verdicts), codes)


def absent(check: str, host: str, outcome: str, reason: str, started: float = 0.0) -> Verdict:
    """Return the verdict of a host of which the runs say nothing: `skipped`, or `unknown`."""
    return Verdict(
        check=check,
        host=host,
        verdict="skipped" if outcome == "skipped" else "unknown",
        expected="runs with other hosts",
        reason=reason,
        fix="" if outcome == "skipped" else _FIX_AGAIN,
        started=started,
    )


def _seconds(ran: Sequence[GroupRunResult]) -> float:
    return round(sum(each.seconds for each in ran), 3)
