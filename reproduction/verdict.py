"""When a claim holds. Written down before the runs that it judges, and the same for every claim.

**A question** compares two lines over the same seeds. The difference δ of each seed is taken, and an interval of the
paired t-test over at least five seeds answers it. What counts as equal is a difference within ± the margin, whatever
its sign: 0.2 points of accuracy on MNIST, 1 point on CIFAR-10; for the speed of learning, measured as the mean accuracy
over the first quarter of the rounds, 1 point; for energy, 5 per cent of the budget for the rounds that are compared;
for when devices take part, 5 per cent of a run's training.

    "A is better than B by x"   holds            the interval lies above +margin, and the advantage is about x: its mean
                                                 is at least x/2, or the plain 95 % interval reaches x
                                holds in part    the interval lies above +margin, but the advantage is smaller than
                                                 that; or the interval lies above 0 and the mean above +margin, but
                                                 the interval reaches into the margin
                                does not hold    the interval lies below +margin: equal or worse
                                cannot be judged otherwise: these seeds leave both open
    "A is better than B"        the same with x = 0
    "A and B are equal"         holds            the interval lies within ± the margin
                                does not hold    the interval lies outside it
                                cannot be judged otherwise

**Many questions.** One interval of 95 % in twenty is wrong by chance, and there are hundreds. So the level of the
interval follows from Holm's correction: all questions of the paper's own claims are one family, all questions of ours a
second one. Each question has the two-sided p-value of its edge: +margin where it asks for better, where it asks for
equal the one of ± the margin that is nearer to what was measured. Holm orders them and grants each a level such that,
with 95 % probability, no edge in the whole family is crossed by mistake. The verdict is read off the interval at the
level granted; the table prints the plain 95 % interval, and says where the plain one would have given another verdict.
A question that two claims ask is one question. Widening an interval can take a verdict back, never improve it.

**Identical runs.** Where no device is limited, different schedulers choose the same devices in every round, and the
difference is 0 but for the arithmetic of another machine. That is no test of anything: such a pair is said to be
identical, has no part in a verdict and none in the family. A claim of which all pairs are identical is neither
held nor refuted.

**Several questions.** A claim about several pairs holds if it holds for all, does not hold if it holds for none, not
even in part, and holds in part otherwise; it cannot be judged if no pair can. A claim about the best of several rivals
has the verdict of the rival that is hardest to beat.

**Budgets** are per device, as in (14a): a claim that a scheduler stays within the budget holds if no device overspends
for any seed. What is counted and not sampled (sizes of uploads, devices over their budget) needs no interval.

A quick look judges nothing, and neither do runs that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kfl.comparison.statistics import Difference

Verdict = Literal["holds", "holds in part", "does not hold", "cannot be judged", "identical runs"]
FEWEST_SEEDS = 5
LEVEL = 0.05
"""1 − confidence of a whole family, and of an interval that stands alone."""
MARGIN = {"mnist": 0.2, "cifar10": 1.0}
"""Points of accuracy at the end that count as equal."""
SPEED_MARGIN = 1.0
"""Points of mean accuracy over the first quarter of the rounds."""
ENERGY_MARGIN = 0.05
"""Part of the budget for the rounds that are compared."""
TRAINING_MARGIN = 0.05
"""Part of a run's training that may come earlier or later."""

Asks = Literal["above", "equal"]
"""Whether A is better than B, or as good."""


def better(difference: Difference | None, margin: float, by: float = 0.0, level: float = LEVEL) -> Verdict:
    """Whether A is better than B, by about so much; `difference` has the plain interval, `level` is the one granted.

    >>> better(Difference(2.0, 1.5, 2.5, 5), margin=0.2, by=2.1)
    'holds'
    >>> better(Difference(0.5, 0.1, 0.9, 5), margin=0.2), better(Difference(0.1, 0.05, 0.15, 5), margin=0.2)
    ('holds in part', 'does not hold')
    >>> better(Difference(-0.1, -0.3, 0.1, 5), margin=0.2), better(Difference(0.5, -0.3, 1.3, 5), margin=0.2)
    ('does not hold', 'cannot be judged')
    """
    if (bounds := _bounds(difference, level)) is None or difference is None or difference.high is None:
        return "cannot be judged"
    low, high = bounds
    if low > margin:
        return "holds" if difference.mean >= by / 2 or difference.high >= by else "holds in part"
    if high < margin:
        return "does not hold"
    return "holds in part" if low > 0 and difference.mean > margin else "cannot be judged"


def equal(difference: Difference | None, margin: float, level: float = LEVEL) -> Verdict:
    """Whether A and B are equal.

    >>> equal(Difference(0.1, -0.4, 0.6, 5), margin=1.0), equal(Difference(3.0, 2.0, 4.0, 5), margin=1.0)
    ('holds', 'does not hold')
    """
    if (bounds := _bounds(difference, level)) is None:
        return "cannot be judged"
    low, high = bounds
    if -margin < low and high < margin:
        return "holds"
    return "does not hold" if low > margin or high < -margin else "cannot be judged"


def chance(difference: Difference, margin: float, asks: Asks) -> float:
    """The p-value of a question: of +margin, or for "equal" of the edge that is nearer to what was measured.

    >>> round(chance(Difference(0.5, 0.2, 0.8, 5), 0.2, "above"), 3)
    0.05
    >>> round(chance(Difference(-0.5, -0.8, -0.2, 5), 0.2, "equal"), 3)
    0.05
    """
    edges = (margin,) if asks == "above" else (margin, -margin)
    return max(difference.p_value(edge) for edge in edges)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict on a claim about several pairs.

    >>> together(["holds", "does not hold"]), together(["does not hold", "cannot be judged"])
    ('holds in part', 'does not hold')
    >>> together(["holds", "identical runs"]), together(["identical runs"])
    ('holds', 'identical runs')
    """
    told = set(verdicts) - {"identical runs"}
    if not told:
        return "identical runs"
    if told == {"cannot be judged"}:
        return "cannot be judged"
    if told == {"holds"}:
        return "holds"
    return "holds in part" if told & {"holds", "holds in part"} else "does not hold"


def weakest(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict on a claim about the best of several rivals: that of the one that is hardest to beat.

    >>> weakest(["holds", "does not hold", "cannot be judged"]), weakest(["holds", "holds in part"])
    ('does not hold', 'holds in part')
    """
    order: tuple[Verdict, ...] = ("does not hold", "cannot be judged", "holds in part", "holds", "identical runs")
    return min(verdicts, key=order.index)


def _bounds(difference: Difference | None, level: float) -> tuple[float, float] | None:
    """The interval at a level; None where it judges nothing."""
    if difference is None or difference.count < FEWEST_SEEDS:
        return None
    found = difference.at(1 - level)
    return None if found.low is None or found.high is None else (found.low, found.high)
