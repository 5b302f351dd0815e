"""Find the hosts and paths of a fabric that are bad, with few runs. A pure function over a probe, which runs a job on a group of hosts.

    1  The whole fabric: where it passes, everybody does.
    2  A group that passes is sought: the known-good ones, whom all later groups contain.
    3  The others are added: the smallest addition that fails is sought by halving, and names one host.
    4  That host is put to the proof with known-good partners: bad is who fails with every set of partners, while they pass without it.
    5  Where it passes with them, it may be a path to one of the good ones, sought in the same way; or the failure was somebody's bad
       moment, and repeated runs narrow down whose; or a group of that size fails whoever is in it: smaller ones go on.

Nobody is `fail` without the proof of step 4. What does not give the same answer twice, or gives none, ends as `unknown`.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Answer = Literal["pass", "fail", "unknown"]
Probe = Callable[[tuple[str, ...]], Answer]
State = Literal["pass", "fail", "suspect", "unsteady", "large", "unknown"]

# So many runs with a host, each with other partners where there are enough, and at least with so many disjoint sets of them.
_PROOFS = 3
_SETS = 2
_PARTNERS = 2
_PAIR_RUNS = 3
_LARGE_RUNS = 4
# So many pairs are tried before it is given up that any group passes.
_MOST_PAIRS = 16
# So many failures may turn out to be bad moments (in a large fabric one for each halving); then it is too restless to go on.
_LEAST_PATIENCE = 3
_UNSTEADY_RUNS = 6
_UNSTEADY_ROUNDS = 2
# So many hosts are swapped in to see whether a group fails without the one that is in question.
_SWAPS = 3
# Groups may be of this share of the largest that passes: near the limit a run's luck decides.
_ROOM = 0.75
# So many groups more may be run where not everybody fits into one.
_MOST_PARTS = 16
# More bad paths at one host than this are rather the host's own doing, which is then not proved.
_MOST_LINKS = 2


@dataclass(frozen=True, slots=True)
class PathState:
    """What is known of a host, or of the path between two; `reason` is empty on a pass."""

    hosts: tuple[str, ...]
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BisectionResult:
    """What was found: each host in the order given, then paths that are suspect; and how many runs it took.

    Groups of more than `largest` hosts fail whoever is in them; None where that did not show.
    """

    hosts: tuple[PathState, ...]
    paths: tuple[PathState, ...]
    runs: int
    largest: int | None = None


def bisect_fabric(hosts: Sequence[str], probe: Probe, *, steady_runs: int = 3, seed: int = 0) -> BisectionResult:
    """Return what is known of each host after few runs: for b bad ones at most about 2 b log2(N) and a constant.

    Args:
        hosts: Who takes part, each once.
        probe: Runs a job on two hosts or more, and says whether it went well; `unknown` where it gave no answer in time.
        steady_runs: So often the largest group must pass: a host that spoils half of its runs slips through one of them, but hardly
            through three.
        seed: The order in which hosts are taken is drawn from it, so that neighbours in a rack are not neighbours here.
    """
    search = _Search(hosts, probe, steady_runs, random.Random(seed))  # noqa: S311 - an order, no secret
    search.run()
    known = tuple(
        search.found.get(host) or PathState((host,), "unknown", "it was not reached before the search was given up") for host in hosts
    )
    return BisectionResult(known, tuple(search.paths), search.runs, search.largest)


class _Search:
    """One search: what is known so far. `good` are hosts that passed together, in one group or, where that is too large, in several."""

    def __init__(self, hosts: Sequence[str], probe: Probe, steady_runs: int, rng: random.Random) -> None:
        self._probe = probe
        self._steady_runs = steady_runs
        self._rng = rng
        self._hosts = rng.sample(list(hosts), len(hosts))
        self._depth = math.ceil(math.log2(max(2, len(hosts))))
        self._patience = max(_LEAST_PATIENCE, self._depth)
        self._partners_used = 0
        self._moments = 0
        self._most = len(hosts)
        self.largest: int | None = None
        self.good: list[str] = []
        self.found: dict[str, PathState] = {}
        self.paths: list[PathState] = []
        self.runs = 0

    def ask(self, group: Sequence[str]) -> Answer:
        """Run a group; no answer is asked for once more."""
        for _ in range(2):
            self.runs += 1
            answer = self._probe(tuple(group))
            if answer != "unknown":
                return answer
        return "unknown"

    def passes(self, group: Sequence[str]) -> bool:
        """Return whether a group passes; one host alone has nobody to fail with."""
        return len(group) < 2 or self.ask(group) == "pass"

    def with_good(self, part: Sequence[str]) -> list[str]:
        """Return a group of some hosts and the good ones, as many of these as there is room for."""
        return [*self.good[: max(0, self._most - len(part))], *part]

    def say(self, state: State, reason: str, *hosts: str) -> None:
        """Keep what was found out about hosts; a proof is not taken back."""
        for host in hosts:
            if host not in self.found or self.found[host].state != "fail":
                self.found[host] = PathState((host,), state, reason)

    def run(self) -> None:
        """Search until everybody is known, or the fabric turns out too restless."""
        if len(self._hosts) < 2:
            self.say("unknown", "one host alone has no fabric to measure", *self._hosts)
            return
        if self.passes(self._hosts):
            self.good = list(self._hosts)
            self._pass_again()
        elif not self._seed():
            reason = f"no group of hosts passes, down to pairs ({self.runs} runs): nothing is known to be good, so nobody can be proved bad"
            self.say("unknown", reason, *self._hosts)
            return
        else:
            self._add([host for host in self._hosts if host not in set(self.good)])
        for host in self.good:
            if host not in self.found:
                self.say("pass", "", host)

    def _pass_again(self) -> None:
        """Have the largest group pass more than once: a host may have slipped through."""
        while failed := next((group for group in self._largest_groups() if not self.passes(group)), None):
            if self._moments >= self._patience:
                self.say("unsteady", "the largest group fails and passes when repeated", *failed)
                return
            self._unsteady(failed)

    def _largest_groups(self) -> Iterator[list[str]]:
        """Yield all good hosts each time, or as many as may be in one group, others each time."""
        for number in range(self._steady_runs - 1):
            start = number * self._most % max(1, len(self.good))
            yield [*self.good[start:], *self.good[:start]][: self._most]

    def _seed(self) -> bool:
        """Find a group that passes: two of each size, halved each time, and more of the smallest."""
        size = len(self._hosts)
        while size > 2:
            size = max(2, size // 2)
            starts = range(0, len(self._hosts) - size + 1, size)[:2]
            groups = (self._hosts[start : start + size] for start in starts)
            for group in groups if size > 2 else islice(chain.from_iterable(round_robin(self._hosts)), _MOST_PAIRS):
                if self.passes(group):
                    self.good = list(group)
                    return True
        return False

    def _add(self, others: list[str]) -> None:
        """Add everybody else to the good ones, setting aside who fails."""
        surely_fails = True
        while others:
            part, later = others[: self._room()], others[self._room() :]
            if not surely_fails and self.passes(self.with_good(part)):
                self.good += part
                others = later
                continue
            others = self._advance(part) + later
            surely_fails = False
            if self.largest and len(others) > _MOST_PARTS * self._room():
                reason = f"groups of more than {self.largest} hosts fail whoever is in them, and it was not reached in smaller ones"
                self.say("large", reason, *others[_MOST_PARTS * self._room() :])
                others = others[: _MOST_PARTS * self._room()]
            if self._moments > self._patience:
                self.say("unsteady", "too many runs failed and passed when repeated: the search was given up", *others)
                return
        self._pass_again()

    def _room(self) -> int:
        """Return how many hosts may be added at once: all, or half of a group where groups have a limit."""
        return len(self._hosts) if self.largest is None else max(1, self._most // 2)

    def _advance(self, others: list[str]) -> list[str]:
        """Find the first of the others with whom the good ones fail, and settle it; return who is left."""
        low, high = 0, len(others)
        while high - low > 1:
            middle = (low + high) // 2
            if self.passes(self.with_good(others[low:middle])):
                self.good += others[low:middle]
                low = middle
            else:
                high = middle
        self._settle(others[low], others[low + 1 :])
        return others[low + 1 :]

    def _settle(self, host: str, waiting: Sequence[str]) -> None:
        """Find out why the good ones fail with a host, or seem to; `waiting` are those of whom nothing is known yet."""
        answer, reason = self._prove(host)
        if answer == "fail":
            self.say("fail", reason, host)
        elif answer == "unknown":
            self.say("unknown", reason, host)
        elif self.passes(self.with_good([host])):
            self._unsteady(self.with_good([host]))
            if host not in self.found:
                self.good.append(host)
        else:
            self._settle_paths(host, waiting)

    def _prove(self, host: str, *, avoid: frozenset[str] = frozenset()) -> tuple[Answer, str]:
        """Return `fail` with the proof, `pass` where it passes with partners, `unknown` where runs with it give no answer."""
        sets = self._partners(host, avoid)
        if len(sets) < _SETS:
            return "unknown", f"{sum(map(len, sets))} good partners are too few to prove anything"
        everybody = [partner for partners in sets for partner in partners]
        said: list[Answer] = []
        for number in range(_PROOFS):
            said.append(self.ask([host, *sets[number % len(sets)]]))
            if said[-1] == "pass" or (number < _SETS and not self.passes(everybody)):
                return "pass", ""
        if "unknown" in said:
            return "unknown", f"{said.count('unknown')} of {_PROOFS} runs with it give no answer, and its partners pass without it"
        return "fail", f"{_PROOFS} of {_PROOFS} runs with good partners fail, and {_SETS} of {_SETS} without it pass"

    def _partners(self, host: str, avoid: frozenset[str]) -> list[list[str]]:
        """Return disjoint sets of good partners, others each time; all of them together fit into one group."""
        free = [each for each in self.good if each != host and each not in avoid]
        size = _PARTNERS if min(len(free), self._most) >= _PROOFS * _PARTNERS else 1
        count = min(_PROOFS, self._most // size)
        start = self._partners_used % max(1, len(free))
        self._partners_used += size * _PROOFS
        turned = free[start:] + free[:start]
        return [turned[number * size : (number + 1) * size] for number in range(count) if len(turned) >= (number + 1) * size]

    def _settle_paths(self, host: str, waiting: Sequence[str]) -> None:
        """Find the good ones with whom a host fails, though it passes with others."""
        bad: set[str] = set()
        while len(bad) < _MOST_LINKS:
            others = [each for each in self.with_good([host])[:-1] if each not in bad]
            other = self._first_failing(host, others)
            if self._prove(other)[0] == "fail":
                self._expel(other, f"good partners fail with it and pass without it; it had passed once, in a group of {len(self.good)}")
                self._settle_again(host, bad)
                return
            if not self._path_fails(host, other):
                break
            bad.add(other)
            self.paths.append(PathState((host, other), "suspect", f"they fail together ({_PAIR_RUNS} runs), and each passes with others"))
            if self.passes([host, *(each for each in self.good if each not in bad)]):
                self.say("pass", "", host)
                return
        if self.largest is None and self._too_large(host, [each for each in self.good if each not in bad], waiting):
            if not bad:
                self.good.append(host)
            self.say("pass", "", host)
            return
        if self._fails_again(host):
            reason = "a large group passes without it and fails with it, a small one passes with it"
            self.say("suspect", reason if not bad else f"it fails with {len(bad)} others, and with some groups without them", host)
            return
        known = self.largest
        self._unsteady(self.with_good([host]))
        if self.largest != known and not bad:
            self.good.append(host)
        else:
            self.say("unsteady", "groups with it fail and pass when repeated", host)

    def _settle_again(self, host: str, bad: set[str]) -> None:
        """Judge a host anew, now that a bad one is no longer among the good."""
        if self.passes([host, *(each for each in self.good if each not in bad)]):
            if not bad:
                self.good.append(host)
            self.say("pass", "", host)
        else:
            self.say("unknown", "groups with it failed, and it passes with some partners", host)

    def _first_failing(self, host: str, others: Sequence[str]) -> str:
        low, high = 0, len(others)
        while high - low > 1:
            middle = (low + high) // 2
            if self.passes([host, *others[:middle]]):
                low = middle
            else:
                high = middle
        return others[low]

    def _path_fails(self, host: str, other: str) -> bool:
        """Return whether two fail together each time, while each of them passes with others."""
        if any(self.passes([host, other]) for _ in range(_PAIR_RUNS)):
            return False
        for one, without in ((host, other), (other, host)):
            for partners in self._partners(one, frozenset((without,))):
                if not self.passes([one, *partners]):
                    return False
        return True

    def _too_large(self, host: str, good: Sequence[str], waiting: Sequence[str]) -> bool:
        """Return whether a group of one more than the good ones fails whoever it is, while one as large as theirs passes with the host."""
        if len(good) < 2 or not all(self.passes([*fewer, host]) for fewer in (good[1:], good[:-1])):
            return False
        for other in waiting[:_SWAPS]:
            if self.passes([*good, other]):
                return False
            # It passes in a group that is one smaller: it fails in the larger one for no doing of its own.
            if self.passes([*good[1:], other]):
                break
        if not self.passes(good) or self.passes([*good, host]):
            return False
        self._limit(len(good))
        return True

    def _limit(self, largest: int) -> None:
        self.largest, self._most = largest, max(2, int(_ROOM * largest))

    def _fails_again(self, host: str) -> bool:
        return all(self.passes(self.with_good([])) and not self.passes(self.with_good([host])) for _ in range(_LARGE_RUNS))

    def _expel(self, host: str, reason: str) -> None:
        self.good.remove(host)
        self.say("fail", reason, host)

    def _unsteady(self, doubtful: list[str]) -> None:
        """Narrow down whose bad moment a failure was: a group that fails holds the culprit, one that passes proves little."""
        self._moments += 1
        whole, fresh = list(doubtful), 2 * self._depth + _UNSTEADY_RUNS
        while len(doubtful) > 1 and fresh > 0:
            mixed = self._rng.sample(doubtful, len(doubtful))
            for half in (mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]):
                fresh -= 1
                company = [each for each in self.good if each not in doubtful][: max(0, 2 - len(half))]
                if len(half) + len(company) > 1 and not self.passes(half + company):
                    doubtful = half
                    break
        if len(doubtful) == 1 and self._caught(doubtful[0]):
            return
        if doubtful == whole and self.largest is None and sum(not self.passes(whole) for _ in range(_LARGE_RUNS)) > 1:
            # No half of it failed once, and all of it fails again and again: so near to the limit a run's luck decides.
            self._limit(max(2, len(whole) - 1))
            return
        among = f", and it is one of {len(doubtful)}" if len(doubtful) < len(whole) else ", and whose doing it was did not show"
        self.say("unsteady", f"a run of {len(whole)} hosts failed and passed when repeated{among}", *doubtful)
        if len(doubtful) <= len(whole) // 4:
            self.good = [each for each in self.good if each not in doubtful]

    def _caught(self, host: str) -> bool:
        """Return whether a host fails again and again, though not always, with each of two sets of partners, who never fail without it."""
        fails: Counter[tuple[str, ...]] = Counter()
        for _ in range(_UNSTEADY_ROUNDS):
            sets = self._partners(host, frozenset())
            everybody = [partner for partners in sets for partner in partners]
            for partners in sets * 2:
                fails[tuple(sorted(partners))] += not self.passes([host, *partners])
                if not self.passes(everybody):
                    return False
        failing = sum(count > 0 for count in fails.values())
        if failing < _SETS or 2 * failing <= len(fails):
            return False
        if host in self.good:
            self.good.remove(host)
        self.say("suspect", f"{fails.total()} runs with it fail, with {failing} of {len(fails)} sets of partners: unsteady", host)
        return True
