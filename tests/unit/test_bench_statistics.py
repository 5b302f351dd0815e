"""Robust statistics, compared with simulations."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_bootstrap.bench.judging.statistics import Spread, multiplier, noise, spread


def _normal(seed: int, size: int) -> list[float]:
    rng = random.Random(seed)  # noqa: S311 - made-up values
    return [rng.gauss(0, 1) for _ in range(size)]


@pytest.mark.parametrize("size", [3, 5, 8, 9, 15, 64, 129, 300])
def test_the_spread_of_normal_values_is_their_standard_deviation(size: int) -> None:
    """The average is right within 5 %, also for few values and around the sizes where the estimate changes."""
    found = [spread(_normal(seed, size)).sigma for seed in range(max(40, 6000 // size))]

    assert statistics.mean(found) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("size", [20, 400])
def test_outliers_hardly_change_the_spread(size: int) -> None:
    """A fifth of the values is a thousand times as far away."""
    values = _normal(1, size)
    clean, spoilt = spread(values), spread([*values[: -size // 5], *(1000.0 + number for number in range(size // 5))])

    assert abs(spoilt.center - clean.center) < 0.5
    assert spoilt.sigma < 2.5 * clean.sigma


def test_one_value_has_no_spread() -> None:
    """It is its own center."""
    assert spread([4.0]) == Spread(4.0, 0.0, 1)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=40), st.floats(0.1, 100))
def test_noise_is_proportional_to_the_values(samples: list[float], factor: float) -> None:
    """One sample has no noise."""
    assert noise([sample * factor for sample in samples]) == pytest.approx(factor * noise(samples), rel=1e-6, abs=1e-6)
    assert noise(samples[:1]) == 0


@pytest.mark.parametrize("size", [4, 5, 7, 15, 63, 199])
@pytest.mark.parametrize("chance", [0.01, 0.0025])
def test_healthy_values_rarely_exceed_the_multiplier(size: int, chance: float) -> None:
    """At most one and a half times as often as the given chance."""
    rng = random.Random(size)  # noqa: S311 - made-up values
    reach, beyond, tries = multiplier(chance, size), 0, 12_000 if size < 20 else 3000
    for _ in range(tries):
        peers = spread([rng.gauss(0, 1) for _ in range(size)])
        beyond += rng.gauss(0, 1) - peers.center > reach * peers.sigma

    assert beyond / tries <= 1.5 * chance + 0.001


def test_fewer_peers_have_a_wider_limit() -> None:
    """With many peers it is that of the normal distribution, with one there is none."""
    found = [multiplier(0.005, size) for size in (4, 6, 20, 100, 10_000)]

    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(2.576, abs=0.01)
    assert multiplier(0.005, 1) == float("inf")
