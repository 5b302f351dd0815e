"""Who talks to whom when paths are measured in pairs: rounds of pairs in which every host is at most once, so that all may run at once."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Pair = tuple[str, str]
Round = tuple[Pair, ...]


def round_robin(hosts: Sequence[str]) -> Iterator[Round]:
    """Yield rounds in which every pair comes once: N - 1 of them for an even number of hosts, N for an odd one, where one host rests.

    The circle method: one host stays, the others move on by a place a round
    (https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method).
    """
    count = len(hosts) + len(hosts) % 2
    for turn in range(count - 1):
        places = [0, *(1 + (place - turn) % (count - 1) for place in range(count - 1))]
        pairs = ((places[left], places[count - 1 - left]) for left in range(count // 2))
        yield tuple((hosts[min(pair)], hosts[max(pair)]) for pair in pairs if max(pair) < len(hosts))


def chosen_rounds(hosts: Sequence[str], place_of: Mapping[str, str], *, inside: int, across: int) -> tuple[Round, ...]:
    """Return a few rounds that tell most: within each rack, and between racks; no pair comes twice.

    Args:
        hosts: Who takes part.
        place_of: Each host's rack, or on a rail-optimised fabric its group of leaf switches: a path inside goes over one switch, a path
            across goes over the spine. A host without a place is in one of its own.
        inside: Rounds within the places; all places have theirs at once. A place with fewer possible rounds has those.
        across: Rounds between places: the first half of the places with the second, with partners spread over all of that. Where one
            place has more than half of the hosts, some of them rest.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        places[place_of.get(host) or f"\0{host}"].append(host)
    rounds = [*_inside(list(places.values()), inside), *_across(list(places.values()), across)]
    return tuple(each for each in rounds if each)


def _inside(places: Sequence[Sequence[str]], count: int) -> Iterator[Round]:
    wanted = ([each for each, _ in zip(round_robin(place), range(count), strict=False)] for place in places)
    for together in zip_longest(*wanted, fillvalue=()):
        yield tuple(pair for each in together for pair in each)


def _across(places: Sequence[Sequence[str]], count: int) -> Iterator[Round]:
    """Yield rounds between the first half of all hosts, place by place, and the second, shifted by another amount each time."""
    ordered = [(host, number) for number, place in enumerate(sorted(places, key=len, reverse=True)) for host in place]
    half = len(ordered) // 2
    rest = len(ordered) - half
    rounds = min(count, rest)
    for turn in range(rounds):
        shift = turn * rest // rounds
        pairs = ((ordered[left], ordered[half + (left + shift) % rest]) for left in range(half))
        yield tuple((one, other) for (one, here), (other, there) in pairs if here != there)
