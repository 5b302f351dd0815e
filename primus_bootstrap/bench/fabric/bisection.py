"""Find bad hosts and paths of a fabric with few runs. The search calls a probe, which runs a job on a group of hosts.

    1  Run all hosts together. If this passes, all hosts pass.
    2  Otherwise find a group that passes. Its hosts are known to be good, and all later groups contain them.
    3  Add the other hosts. If an addition fails, bisect it; this names one host.
    4  Prove the fault: the host fails with every set of good partners, and the partners pass without it.
    5  If it passes with them, the cause is one of: the path to one of the good hosts, found by another bisection; a single failed run,
       which repeated runs narrow down; the size of the group, in which case smaller groups are used.

A host fails only with the proof of step 4. If runs contradict each other or give no answer, the host is `unknown`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

from primus_bootstrap.bench.fabric.pair_rounds import round_robin
from primus_bootstrap.bench.results.group_records import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Probe = Callable[[tuple[str, ...]], Answer]
State = Literal["pass", "fail", "suspect", "unsteady", "large", "unknown"]

# A proof takes this many runs, with different partners if there are enough, from at least this many disjoint sets of partners.
_PROOF_RUNS = 3
_MIN_SETS = 2
_PARTNERS = 2
_PAIR_RUNS = 3
_LARGE_RUNS = 4
# The search ends if none of this many pairs passes.
_MAX_PAIRS = 16
# Number of contradicting runs after which the search ends; in a large fabric one for each bisection step.
_MIN_PATIENCE = 3
_UNSTEADY_RUNS = 6
_UNSTEADY_ROUNDS = 2
# Number of other hosts that replace the one in question, to see whether a group of that size fails without it.
_SWAPS = 3
# Size of groups as a share of the largest group that passes: near the limit, chance decides.
_SIZE_MARGIN = 0.75
# Number of further groups if not all hosts fit into one.
_MAX_GROUPS = 16
# More bad paths than this at one host suggest a fault of the host, which is then not proved.
_MAX_BAD_PATHS = 2


@dataclass(frozen=True, slots=True)
class PathState:
    """The state of one host, or of the path between two; `reason` is empty on a pass."""

    hosts: tuple[str, ...]
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BisectionResult:
    """The result of a search."""

    hosts: tuple[PathState, ...]  # every host, in the given order
    paths: tuple[PathState, ...]  # suspect paths
    runs: int  # number of runs
    largest: int | None = None  # groups of more hosts fail, whichever hosts are in them; None if this was not observed


def bisect_fabric(hosts: Sequence[str], probe: Probe, *, steady_runs: int = 3, seed: int = 0) -> BisectionResult:
    """Return the state of each host. With b bad hosts this takes at most about 2 b log2(N) runs and a constant.

    Args:
        hosts: The hosts, each once.
        probe: Runs a job on at least two hosts; returns `unknown` if it gave no answer in time.
        steady_runs: Number of times that the largest group must pass. A host that fails half of its runs may pass one of them, but
            rarely three.
        seed: Seed of the order in which hosts are added, so that neighbours in a rack are not neighbours in the search.
    """
    search = _Search(hosts, probe, steady_runs, random.Random(seed))  # noqa: S311 - an order, no secret
    search.run()
    not_reached = "the search ended before it reached this host"
    states = tuple(search.states.get(host) or PathState((host,), "unknown", not_reached) for host in hosts)
    return BisectionResult(states, tuple(search.paths), search.runs, search.largest)


class _Search:
    """One search. `good` are hosts that passed together, in one group or, if that is too large, in several."""

    def __init__(self, hosts: Sequence[str], probe: Probe, steady_runs: int, rng: random.Random) -> None:
        self._probe = probe
        self._steady_runs = steady_runs
        self._rng = rng
        self._hosts = rng.sample(list(hosts), len(hosts))
        self._depth = math.ceil(math.log2(max(2, len(hosts))))
        self._patience = max(_MIN_PATIENCE, self._depth)
        self._partners_used = 0
        self._contradictions = 0
        self._max_group = len(hosts)
        self.largest: int | None = None
        self.good: list[str] = []
        self.states: dict[str, PathState] = {}
        self.paths: list[PathState] = []
        self.runs = 0

    def ask(self, group: Sequence[str]) -> Answer:
        """Run a group; if it gives no answer, run it once more."""
        for _ in range(2):
            self.runs += 1
            answer = self._probe(tuple(group))
            if answer != "unknown":
                return answer
        return "unknown"

    def passes(self, group: Sequence[str]) -> bool:
        """Return whether a group passes; a single host always does."""
        return len(group) < 2 or self.ask(group) == "pass"

    def with_good(self, part: Sequence[str]) -> list[str]:
        """Return a group of some hosts and as many good ones as fit."""
        return [*self.good[: max(0, self._max_group - len(part))], *part]

    def set_state(self, state: State, reason: str, *hosts: str) -> None:
        """Set the state of hosts; a proved failure is final."""
        for host in hosts:
            if host not in self.states or self.states[host].state != "fail":
                self.states[host] = PathState((host,), state, reason)

    def run(self) -> None:
        """Search until the state of every host is known, or too many runs contradict each other."""
        if len(self._hosts) < 2:
            self.set_state("unknown", "a single host has no fabric to measure", *self._hosts)
            return
        if self.passes(self._hosts):
            self.good = list(self._hosts)
            self._repeat_largest()
        elif not self._find_good_group():
            reason = f"no group of hosts passes, not even a pair ({self.runs} runs), so no host is known to be good"
            self.set_state("unknown", reason, *self._hosts)
            return
        else:
            self._add([host for host in self._hosts if host not in set(self.good)])
        for host in self.good:
            if host not in self.states:
                self.set_state("pass", "", host)

    def _repeat_largest(self) -> None:
        """Repeat the largest group: an unsteady host may have passed once."""
        while failed := next((group for group in self._largest_groups() if not self.passes(group)), None):
            if self._contradictions >= self._patience:
                self.set_state("unsteady", "the largest group fails and passes when repeated", *failed)
                return
            self._narrow_unsteady(failed)

    def _largest_groups(self) -> Iterator[list[str]]:
        """Yield all good hosts for each repetition; if they do not fit into one group, other ones each time."""
        for number in range(self._steady_runs - 1):
            start = number * self._max_group % max(1, len(self.good))
            yield [*self.good[start:], *self.good[:start]][: self._max_group]

    def _find_good_group(self) -> bool:
        """Find a group that passes: try two of each size, halve the size, and try more pairs in the end."""
        size = len(self._hosts)
        while size > 2:
            size = max(2, size // 2)
            starts = range(0, len(self._hosts) - size + 1, size)[:2]
            groups = (self._hosts[start : start + size] for start in starts)
            for group in groups if size > 2 else islice(chain.from_iterable(round_robin(self._hosts)), _MAX_PAIRS):
                if self.passes(group):
                    self.good = list(group)
                    return True
        return False

    def _add(self, others: list[str]) -> None:
        """Add the other hosts to the good ones, and classify those that fail."""
        surely_fails = True
        while others:
            part, later = others[: self._addition_size()], others[self._addition_size() :]
            if not surely_fails and self.passes(self.with_good(part)):
                self.good += part
                others = later
                continue
            others = self._classify_first_failing(part) + later
            surely_fails = False
            limit = _MAX_GROUPS * self._addition_size()
            if self.largest and len(others) > limit:
                reason = f"groups of more than {self.largest} hosts fail, and the search ended before it reached this host in smaller ones"
                self.set_state("large", reason, *others[limit:])
                others = others[:limit]
            if self._contradictions > self._patience:
                self.set_state("unsteady", "too many runs failed and passed when repeated: the search was ended", *others)
                return
        self._repeat_largest()

    def _addition_size(self) -> int:
        """Return the number of hosts to add at once: all, or half a group if the size of groups is limited."""
        return len(self._hosts) if self.largest is None else max(1, self._max_group // 2)

    def _classify_first_failing(self, others: list[str]) -> list[str]:
        """Classify the first host with which the good ones fail; return the hosts after it."""
        low, high = 0, len(others)
        while high - low > 1:
            middle = (low + high) // 2
            if self.passes(self.with_good(others[low:middle])):
                self.good += others[low:middle]
                low = middle
            else:
                high = middle
        self._classify(others[low], others[low + 1 :])
        return others[low + 1 :]

    def _classify(self, host: str, waiting: Sequence[str]) -> None:
        """Find out why the good hosts fail with a host; `waiting` are the hosts of unknown state."""
        answer, reason = self._prove(host)
        if answer == "fail":
            self.set_state("fail", reason, host)
        elif answer == "unknown":
            self.set_state("unknown", reason, host)
        elif self.passes(self.with_good([host])):
            self._narrow_unsteady(self.with_good([host]))
            if host not in self.states:
                self.good.append(host)
        else:
            self._classify_paths(host, waiting)

    def _prove(self, host: str, *, avoid: frozenset[str] = frozenset()) -> tuple[Answer, str]:
        """Return `fail` with the proof, `pass` if the host passes with partners, `unknown` if its runs give no answer."""
        sets = self._partner_sets(host, avoid)
        if len(sets) < _MIN_SETS:
            return "unknown", f"{sum(map(len, sets))} good partners are too few for a proof"
        all_partners = [partner for partners in sets for partner in partners]
        answers: list[Answer] = []
        for number in range(_PROOF_RUNS):
            answers.append(self.ask([host, *sets[number % len(sets)]]))
            if answers[-1] == "pass" or (number < _MIN_SETS and not self.passes(all_partners)):
                return "pass", ""
        if "unknown" in answers:
            return "unknown", f"{answers.count('unknown')} of {_PROOF_RUNS} runs with it give no answer, and its partners pass without it"
        return "fail", f"{_PROOF_RUNS} of {_PROOF_RUNS} runs with good partners fail, and {_MIN_SETS} of {_MIN_SETS} without it pass"

    def _partner_sets(self, host: str, avoid: frozenset[str]) -> list[list[str]]:
        """Return disjoint sets of good partners, different ones each time, that fit into one group together."""
        free = [partner for partner in self.good if partner != host and partner not in avoid]
        size = _PARTNERS if min(len(free), self._max_group) >= _PROOF_RUNS * _PARTNERS else 1
        count = min(_PROOF_RUNS, self._max_group // size)
        start = self._partners_used % max(1, len(free))
        self._partners_used += size * _PROOF_RUNS
        rotated = free[start:] + free[:start]
        return [rotated[number * size : (number + 1) * size] for number in range(count) if len(rotated) >= (number + 1) * size]

    def _classify_paths(self, host: str, waiting: Sequence[str]) -> None:
        """Find the good hosts with which a host fails, although it passes with others."""
        bad: set[str] = set()
        while len(bad) < _MAX_BAD_PATHS:
            others = [other for other in self.with_good([host])[:-1] if other not in bad]
            other = self._first_failing_partner(host, others)
            if self._prove(other)[0] == "fail":
                self.good.remove(other)
                reason = f"good partners fail with it and pass without it; it had passed once, in a group of {len(self.good) + 1}"
                self.set_state("fail", reason, other)
                self._classify_again(host, bad)
                return
            if not self._path_fails(host, other):
                break
            bad.add(other)
            reason = f"the two hosts fail together ({_PAIR_RUNS} runs), and each passes with others"
            self.paths.append(PathState((host, other), "suspect", reason))
            if self.passes([host, *(good for good in self.good if good not in bad)]):
                self.set_state("pass", "", host)
                return
        if self.largest is None and self._is_too_large(host, [good for good in self.good if good not in bad], waiting):
            if not bad:
                self.good.append(host)
            self.set_state("pass", "", host)
            return
        if self._fails_repeatedly(host):
            reason = "a large group passes without it and fails with it, a small one passes with it"
            self.set_state("suspect", reason if not bad else f"it fails with {len(bad)} others, and with some groups without them", host)
            return
        largest_before = self.largest
        self._narrow_unsteady(self.with_good([host]))
        if self.largest != largest_before and not bad:
            self.good.append(host)
        else:
            self.set_state("unsteady", "groups with it fail and pass when repeated", host)

    def _classify_again(self, host: str, bad: set[str]) -> None:
        """Classify a host again after a bad one was removed from the good ones."""
        if self.passes([host, *(good for good in self.good if good not in bad)]):
            if not bad:
                self.good.append(host)
            self.set_state("pass", "", host)
        else:
            self.set_state("unknown", "groups with it failed, and it passes with some partners", host)

    def _first_failing_partner(self, host: str, others: Sequence[str]) -> str:
        low, high = 0, len(others)
        while high - low > 1:
            middle = (low + high) // 2
            if self.passes([host, *others[:middle]]):
                low = middle
            else:
                high = middle
        return others[low]

    def _path_fails(self, host: str, other: str) -> bool:
        """Return whether two hosts fail together each time, while each of them passes with others."""
        if any(self.passes([host, other]) for _ in range(_PAIR_RUNS)):
            return False
        for one, without in ((host, other), (other, host)):
            for partners in self._partner_sets(one, frozenset((without,))):
                if not self.passes([one, *partners]):
                    return False
        return True

    def _is_too_large(self, host: str, good: Sequence[str], waiting: Sequence[str]) -> bool:
        """Return whether the good hosts fail with any further host, while a group of their size with the host passes."""
        if len(good) < 2 or not all(self.passes([*fewer, host]) for fewer in (good[1:], good[:-1])):
            return False
        for other in waiting[:_SWAPS]:
            if self.passes([*good, other]):
                return False
            # It passes in a group that is one smaller, so the size is the cause.
            if self.passes([*good[1:], other]):
                break
        if not self.passes(good) or self.passes([*good, host]):
            return False
        self._limit_groups(len(good))
        return True

    def _limit_groups(self, largest: int) -> None:
        self.largest, self._max_group = largest, max(2, int(_SIZE_MARGIN * largest))

    def _fails_repeatedly(self, host: str) -> bool:
        return all(self.passes(self.with_good([])) and not self.passes(self.with_good([host])) for _ in range(_LARGE_RUNS))

    def _narrow_unsteady(self, candidates: list[str]) -> None:
        """Narrow down the cause of a run that failed once: a group that fails contains it; a group that passes proves little."""
        self._contradictions += 1
        whole, attempts = list(candidates), 2 * self._depth + _UNSTEADY_RUNS
        while len(candidates) > 1 and attempts > 0:
            mixed = self._rng.sample(candidates, len(candidates))
            for half in (mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]):
                attempts -= 1
                partners = [good for good in self.good if good not in candidates][: max(0, 2 - len(half))]
                if len(half) + len(partners) > 1 and not self.passes(half + partners):
                    candidates = half
                    break
        if len(candidates) == 1 and self._is_unsteady(candidates[0]):
            return
        if candidates == whole and self.largest is None and sum(not self.passes(whole) for _ in range(_LARGE_RUNS)) > 1:
            # No half of the group fails, and the whole group fails repeatedly: its size is near the limit.
            self._limit_groups(max(2, len(whole) - 1))
            return
        narrowed = f", and the cause is one of {len(candidates)}" if len(candidates) < len(whole) else ", and the cause was not found"
        self.set_state("unsteady", f"a run of {len(whole)} hosts failed and passed when repeated{narrowed}", *candidates)
        if len(candidates) <= len(whole) // 4:
            self.good = [good for good in self.good if good not in candidates]

    def _is_unsteady(self, host: str) -> bool:
        """Return whether a host fails some runs with several sets of partners, which never fail without it."""
        failures: Counter[tuple[str, ...]] = Counter()
        for _ in range(_UNSTEADY_ROUNDS):
            sets = self._partner_sets(host, frozenset())
            all_partners = [partner for partners in sets for partner in partners]
            for partners in sets * 2:
                failures[tuple(sorted(partners))] += not self.passes([host, *partners])
                if not self.passes(all_partners):
                    return False
        failing = sum(count > 0 for count in failures.values())
        if failing < _MIN_SETS or 2 * failing <= len(failures):
            return False
        if host in self.good:
            self.good.remove(host)
        self.set_state(
            "suspect", f"{failures.total()} runs with it fail, with {failing} of {len(failures)} sets of partners: unsteady", host
        )
        return True
