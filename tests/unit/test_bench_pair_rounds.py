"""Pairs in rounds: each pair once, nobody twice in a round, and few rounds that reach over racks."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_bootstrap.bench.fabric.pair_rounds import chosen_rounds, round_robin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.bench.fabric.pair_rounds import Round


def _hosts(count: int) -> list[str]:
    return [f"gpu{number}" for number in range(count)]


def _disjoint(rounds: Iterable[Round]) -> bool:
    return all(max(Counter(host for pair in each for host in pair).values()) == 1 for each in rounds)


@given(st.integers(2, 40))
def test_every_pair_once_and_nobody_twice_in_a_round(count: int) -> None:
    """N hosts meet pair by pair in N - 1 rounds (N where it is odd), each host in one pair of a round at most."""
    rounds = list(round_robin(_hosts(count)))

    assert len(rounds) == count - 1 + count % 2
    assert _disjoint(rounds)
    assert sorted(pair for each in rounds for pair in each) == sorted(combinations(sorted(_hosts(count), key=_hosts(count).index), 2))


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_to_talk_to(count: int) -> None:
    """One host alone has no round."""
    assert [each for each in round_robin(_hosts(count)) if each] == []


def test_the_same_rounds_each_time() -> None:
    """The order of rounds and pairs is a function of the hosts alone, and large fleets are paired round by round."""
    first = list(islice(round_robin(_hosts(4096)), 2))

    assert first == list(islice(round_robin(_hosts(4096)), 2))
    assert [len(each) for each in first] == [2048, 2048]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 4), st.integers(0, 6))
def test_rounds_within_racks_and_between_them(sizes: list[int], inside: int, across: int) -> None:
    """Rounds inside pair within racks, rounds across pair between racks; nobody twice in a round, no pair twice at all."""
    place_of = {f"r{rack}n{number}": f"r{rack}" for rack, size in enumerate(sizes) for number in range(size)}
    rounds = chosen_rounds(list(place_of), place_of, inside=inside, across=across)
    kinds = [{place_of[one] == place_of[other] for one, other in each} for each in rounds]
    seen = Counter(frozenset(pair) for each in rounds for pair in each)

    assert _disjoint(rounds)
    assert all(len(kind) == 1 for kind in kinds)
    assert sum(kind == {True} for kind in kinds) <= inside
    assert sum(kind == {False} for kind in kinds) <= across
    assert not seen or max(seen.values()) == 1


def test_racks_of_one_size_leave_nobody_out() -> None:
    """With equal racks every host is in a pair of every round, inside and across, and meets other racks than one."""
    place_of = {f"r{rack}n{number}": f"r{rack}" for rack in range(4) for number in range(8)}
    rounds = chosen_rounds(list(place_of), place_of, inside=2, across=4)
    met = {place_of[b] for each in rounds[2:] for a, b in each if a == "r0n0"}

    assert [len(each) for each in rounds] == [16] * 6
    assert met == {"r2", "r3"}


def test_hosts_without_a_rack_are_apart() -> None:
    """A host whose rack is not known counts as one of its own: every path to it goes across."""
    rounds = chosen_rounds(["a", "b"], {}, inside=1, across=1)

    assert rounds == ((("a", "b"),),)
