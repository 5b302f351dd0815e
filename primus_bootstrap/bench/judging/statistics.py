"""Robust statistics: a few outliers do not change the result."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist, median, stdev
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# C. Croux, P. J. Rousseeuw, "Time-efficient algorithms for two highly robust estimators of scale", Computational Statistics 1 (1992),
# 411-428: factors that make the MAD and Qn of few values unbiased.
_MAD_FEW = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
_QN_FEW = {8: 0.669, 9: 0.872}
# The median of |x| of a normal distribution is 0.6745 sigma; Qn's factor: P. J. Rousseeuw, C. Croux, "Alternatives to the Median Absolute
# Deviation", Journal of the American Statistical Association 88 (1993), 1273-1283, section 3.
_MAD_TO_SIGMA, _QN_TO_SIGMA = 1 / NormalDist().inv_cdf(0.75), 2.2219
# Up to this many values the plain standard deviation is used. A robust estimate from five values is so uncertain that a host with a
# quarter of its peers' speed would not stand out. A second bad host among so few widens the limit: then bad hosts may pass.
MAX_PLAIN_SIZE = 7
# Up to this many values Qn is used. It takes n^2 steps, but needs half the values that the MAD needs for the same precision.
_MAX_QN_SIZE = 128
# The standard error of a median is this times sigma / sqrt(n), for a normal distribution and many values.
MEDIAN_ERROR = math.sqrt(math.pi / 2)


class Spread(NamedTuple):
    """Median, standard deviation and number of values."""

    center: float
    sigma: float
    size: int


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of at least one value. With more than a few values, nearly half of them may be outliers."""
    size, center = len(values), median(values)
    if size < 2:
        return Spread(center, 0.0, size)
    if size <= MAX_PLAIN_SIZE:
        return Spread(center, _plain(values), size)
    return Spread(center, _qn(values) if size <= _MAX_QN_SIZE else _mad(values, center), size)


def noise(samples: Sequence[float]) -> float:
    """Return the standard deviation of one run's samples; 0 for fewer than two."""
    return _mad(samples, median(samples)) if len(samples) > 1 else 0.0


def _plain(values: Sequence[float]) -> float:
    """Return the unbiased standard deviation for a normal distribution (https://en.wikipedia.org/wiki/Unbiased_estimation_of_standard_deviation)."""
    size = len(values)
    return stdev(values) * math.sqrt((size - 1) / 2) * math.gamma((size - 1) / 2) / math.gamma(size / 2)


def _mad(values: Sequence[float], center: float) -> float:
    """Return the standard deviation estimated from the median absolute deviation."""
    size = len(values)
    return _MAD_TO_SIGMA * _MAD_FEW.get(size, size / (size - 0.8)) * median([abs(value - center) for value in values])


def _qn(values: Sequence[float]) -> float:
    """Return the standard deviation estimated by Qn, the first quartile of all pairwise distances."""
    size, half = len(values), len(values) // 2 + 1
    few = _QN_FEW.get(size, size / (size + 1.4) if size % 2 else size / (size + 3.8))
    return _QN_TO_SIGMA * few * sorted([abs(one - other) for one, other in combinations(values, 2)])[half * (half - 1) // 2 - 1]


@lru_cache(maxsize=4096)
def multiplier(chance: float, size: int) -> float:
    """Return the number of sigmas that a healthy value exceeds with the probability `chance`; sigma is estimated from `size` other values.

    Student's t by the Cornish-Fisher expansion (M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions", 26.7.5), with the
    degrees of freedom that the estimate has; tests/unit/test_bench_statistics.py compares it with a simulation.
    """
    z = NormalDist().inv_cdf(1 - chance)
    freedom = (0.85 if size <= MAX_PLAIN_SIZE else 0.5 if size <= _MAX_QN_SIZE else 0.37) * (size - 1)
    if freedom <= 0:
        return math.inf
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
