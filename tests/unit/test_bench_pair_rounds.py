"""Rounds of pairs: every pair once, every host at most once in a round."""

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
    return all(max(Counter(host for pair in pairs for host in pair).values()) == 1 for pairs in rounds)


@given(st.integers(2, 40))
def test_every_pair_once_and_no_host_twice_in_a_round(count: int) -> None:
    """N hosts need N - 1 rounds (N if it is odd)."""
    rounds = list(round_robin(_hosts(count)))

    assert len(rounds) == count - 1 + count % 2
    assert _disjoint(rounds)
    assert sorted(pair for pairs in rounds for pair in pairs) == sorted(combinations(sorted(_hosts(count), key=_hosts(count).index), 2))


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_host_has_no_round(count: int) -> None:
    """Nor has an empty list."""
    assert [pairs for pairs in round_robin(_hosts(count)) if pairs] == []


def test_the_rounds_are_deterministic() -> None:
    """They depend on the hosts only, and large fleets are paired lazily."""
    first = list(islice(round_robin(_hosts(4096)), 2))

    assert first == list(islice(round_robin(_hosts(4096)), 2))
    assert [len(pairs) for pairs in first] == [2048, 2048]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 4), st.integers(0, 6))
def test_rounds_within_racks_and_between_them(sizes: list[int], inside: int, across: int) -> None:
    """Rounds inside pair within racks, rounds across pair between racks; no pair occurs twice."""
    location_of = {f"r{rack}n{number}": f"r{rack}" for rack, size in enumerate(sizes) for number in range(size)}
    rounds = chosen_rounds(list(location_of), location_of, inside=inside, across=across)
    kinds = [{location_of[one] == location_of[other] for one, other in pairs} for pairs in rounds]
    seen = Counter(frozenset(pair) for pairs in rounds for pair in pairs)

    assert _disjoint(rounds)
    assert all(len(kind) == 1 for kind in kinds)
    assert sum(kind == {True} for kind in kinds) <= inside
    assert sum(kind == {False} for kind in kinds) <= across
    assert not seen or max(seen.values()) == 1


def test_equal_racks_leave_no_host_out() -> None:
    """Every host is in a pair of every round, and meets several racks."""
    location_of = {f"r{rack}n{number}": f"r{rack}" for rack in range(4) for number in range(8)}
    rounds = chosen_rounds(list(location_of), location_of, inside=2, across=4)
    met = {location_of[b] for pairs in rounds[2:] for a, b in pairs if a == "r0n0"}

    assert [len(pairs) for pairs in rounds] == [16] * 6
    assert met == {"r2", "r3"}


def test_a_host_without_a_rack_has_one_of_its_own() -> None:
    """Every path to it goes across."""
    rounds = chosen_rounds(["a", "b"], {}, inside=1, across=1)

    assert rounds == ((("a", "b"),),)
