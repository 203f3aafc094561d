"""Numbers over seeds: spreads, and differences paired by seed with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (with n − 1) of some values; no deviation for one value."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """Mean of differences that belong together, and its confidence interval; none for one pair."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, count=3)
    """
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, len(values))


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], confidence: float = 0.95
) -> Difference | None:
    """Ours minus theirs over the seeds both have; None where there is none.

    The interval is that of the paired t-test: d̄ ± t_{n−1} s_d / √n, which takes the differences of the seeds as
    independent and normal. Runs with one seed share data, split and channel, so what a seed does to both cancels.

    >>> paired_difference({0: 1.0, 1: 3.0}, {0: 0.0, 1: 1.0, 2: 5.0}).mean
    1.5
    """
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    found = spread([ours[seed] - theirs[seed] for seed in seeds])
    if found.deviation is None:
        return Difference(found.mean, None, None, found.count)
    quantile = float(special.stdtrit(found.count - 1, 0.5 + confidence / 2))
    half = quantile * found.deviation / math.sqrt(found.count)
    return Difference(found.mean, found.mean - half, found.mean + half, found.count)
