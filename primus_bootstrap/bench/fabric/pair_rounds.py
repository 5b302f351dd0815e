"""Arrange pairs of hosts in rounds. A host is in at most one pair of a round, so all pairs of a round can run at the same time."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Pair = tuple[str, str]
Round = tuple[Pair, ...]


def round_robin(hosts: Sequence[str]) -> Iterator[Round]:
    """Yield rounds with every pair once: N - 1 rounds for an even number of hosts, N for an odd number, where one host pauses.

    The circle method: one host is fixed, the others rotate (https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method).
    """
    count = len(hosts) + len(hosts) % 2
    for turn in range(count - 1):
        order = [0, *(1 + (index - turn) % (count - 1) for index in range(count - 1))]
        pairs = ((order[left], order[count - 1 - left]) for left in range(count // 2))
        yield tuple((hosts[min(pair)], hosts[max(pair)]) for pair in pairs if max(pair) < len(hosts))


def chosen_rounds(hosts: Sequence[str], location_of: Mapping[str, str], *, inside: int, across: int) -> tuple[Round, ...]:
    """Return a few rounds inside locations and between locations; no pair occurs twice.

    Args:
        location_of: Each host's rack, or on a rail-optimised fabric its group of leaf switches. A path inside a location uses one
            switch, a path across locations uses the spine. A host without a location has one of its own.
        inside: Rounds inside the locations, in all of them at once. A location with fewer possible rounds runs those.
        across: Rounds that pair the first half of the locations with the second half, with another offset each time. If one location
            has more than half of the hosts, some of them pause.
    """
    locations: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        locations[location_of.get(host) or f"\0{host}"].append(host)
    rounds = [*_inside(list(locations.values()), inside), *_across(list(locations.values()), across)]
    return tuple(pairs for pairs in rounds if pairs)


def _inside(locations: Sequence[Sequence[str]], count: int) -> Iterator[Round]:
    rounds = ([pairs for pairs, _ in zip(round_robin(hosts), range(count), strict=False)] for hosts in locations)
    for simultaneous in zip_longest(*rounds, fillvalue=()):
        yield tuple(pair for pairs in simultaneous for pair in pairs)


def _across(locations: Sequence[Sequence[str]], count: int) -> Iterator[Round]:
    """Yield rounds between the first half of all hosts, ordered by location, and the second half, with another offset each time."""
    ordered = [(host, number) for number, hosts in enumerate(sorted(locations, key=len, reverse=True)) for host in hosts]
    half = len(ordered) // 2
    rest = len(ordered) - half
    rounds = min(count, rest)
    for turn in range(rounds):
        shift = turn * rest // rounds
        pairs = ((ordered[left], ordered[half + (left + shift) % rest]) for left in range(half))
        yield tuple((one, other) for (one, location), (other, other_location) in pairs if location != other_location)
