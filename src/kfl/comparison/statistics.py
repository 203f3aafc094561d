"""Numbers over seeds: spreads, differences paired by seed with a confidence interval, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy import special

Name = TypeVar("Name")


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (with n − 1) of some values; no deviation for one value."""

    mean: float
    deviation: float | None
    count: int

    def text(self, digits: int = 2) -> str:
        """In per cent.

        >>> Spread(0.98312, 0.0021, 5).text(), Spread(0.5, None, 1).text(1)
        ('98.31 ± 0.21', '50.0')
        """
        around = "" if self.deviation is None else f" ± {100 * self.deviation:.{digits}f}"
        return f"{100 * self.mean:.{digits}f}{around}"


@dataclass(frozen=True)
class Difference:
    """Mean of differences that belong together, and its confidence interval; none for one pair."""

    mean: float
    low: float | None
    high: float | None
    count: int
    confidence: float = 0.95

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; none for one pair."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / _quantile(self.count, self.confidence)

    def text(self, digits: int = 2) -> str:
        """In points, with its interval.

        >>> Difference(0.01, -0.002, 0.022, 5).text(), Difference(-0.01, None, None, 1).text(1)
        ('+1.00 [−0.20, +2.20]', '−1.0')
        """
        ends = [] if self.low is None or self.high is None else [self.low, self.high]
        mean, *interval = (f"{100 * value:+.{digits}f}".replace("-", "−") for value in (self.mean, *ends))
        return f"{mean} [{', '.join(interval)}]" if interval else mean

    def at(self, confidence: float) -> Difference:
        """The same difference with the interval of another confidence.

        >>> wide = Difference(2.0, 1.5, 2.5, 5).at(0.99)
        >>> round(wide.low, 3), round(wide.high, 3)
        (1.171, 2.829)
        """
        if (error := self.error) is None:
            return replace(self, confidence=confidence)
        half = _quantile(self.count, confidence) * error
        return replace(self, low=self.mean - half, high=self.mean + half, confidence=confidence)

    def p_value(self, value: float = 0.0) -> float:
        """Two-sided p-value of the paired t-test that the true mean is `value`; 1 for one pair.

        It is the smallest α for which the interval of confidence 1 − α leaves out `value`.

        >>> round(Difference(2.0, 1.5, 2.5, 5).p_value(1.5), 6)
        0.05
        """
        if (error := self.error) is None:
            return 1.0
        if error == 0:
            return float(self.mean == value)
        return float(2 * special.stdtr(self.count - 1, -abs(self.mean - value) / error))


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

    Args:
        ours: A number for each seed.
        theirs: The same for the other side.
        confidence: Of the interval.

    >>> paired_difference({0: 1.0, 1: 3.0}, {0: 0.0, 1: 1.0, 2: 5.0}).mean
    1.5
    """
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    found = spread([ours[seed] - theirs[seed] for seed in seeds])
    if found.deviation is None:
        return Difference(found.mean, None, None, found.count)
    half = _quantile(found.count, confidence) * found.deviation / math.sqrt(found.count)
    return Difference(found.mean, found.mean - half, found.mean + half, found.count, confidence)


def holm(p_values: Mapping[Name, float], alpha: float = 0.05) -> dict[Name, float]:
    """Holm's correction: the level at which to read each of m tests, so that with 1 − α none is significant by chance.

    In the order of their p-values, the first test has the level α/m, the next α/(m − 1), and so on, up to the first
    that is not significant at its level. That one and all behind it keep its level.

    Args:
        p_values: By the name of the test.
        alpha: The chance of one false finding among all.

    Returns:
        The level of each test, by name, smallest p-value first.

    >>> holm({"a": 0.001, "b": 0.3, "c": 0.024})
    {'a': 0.016666666666666666, 'c': 0.025, 'b': 0.05}
    >>> holm({"a": 0.001, "b": 0.3, "c": 0.04})
    {'a': 0.016666666666666666, 'c': 0.025, 'b': 0.025}
    """
    levels: dict[Name, float] = {}
    kept: float | None = None
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        level = alpha / (len(p_values) - place)
        if kept is None and p_values[name] > level:
            kept = level
        levels[name] = level if kept is None else kept
    return levels


def _quantile(count: int, confidence: float) -> float:
    """How many standard errors the interval of the t-test reaches to either side."""
    return float(special.stdtrit(count - 1, 0.5 + confidence / 2))
