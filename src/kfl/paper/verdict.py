"""When a claim holds. Written down before the first full run, and the same for every claim.

A claim compares two things over the same seeds. The difference of each seed is taken, and the 95 % interval of the
paired t-test over at least five seeds is what decides:

    "A is better than B by x"   holds            the interval lies above 0, and the mean is at least x/2 or the interval
                                                 reaches x
                                holds in part    the interval lies above 0, but the advantage is smaller than that
                                does not hold    the interval lies below the margin: equal or worse
                                cannot be judged otherwise: these seeds leave both open
    "A is better than B"        the same with x = 0
    "A and B are equal"         holds            the interval lies within ± the margin
                                does not hold    the interval lies outside it
                                cannot be judged otherwise

The margin is what counts as equal: 0.2 points of accuracy on MNIST, 1 point on CIFAR-10; for the speed of learning,
measured as the mean accuracy over the first quarter of the rounds, 1 point; for energy, 5 per cent of the budget.
A claim about several pairs holds if it holds for all, does not hold if it holds for none, not even in part, and
holds in part otherwise; it cannot be judged if no pair can. Intervals are taken one by one, without correction for
their number. A quick look judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kfl.paper.setting import Scale
from kfl.simulation.statistics import Difference

if TYPE_CHECKING:
    from kfl.paper.results import Store

Verdict = Literal["holds", "holds in part", "does not hold", "cannot be judged"]
FEWEST_SEEDS = 5
NOT_RUN = "not run"
"""Stands where a number is missing."""
MARGIN = {"mnist": 0.2, "cifar10": 1.0}
"""Points of accuracy at the end that count as equal."""
SPEED_MARGIN = 1.0
ENERGY_MARGIN = 0.05


def better(difference: Difference | None, margin: float, by: float = 0.0) -> Verdict:
    """Whether A is better than B, by about so much.

    >>> better(Difference(2.0, 1.5, 2.5, 5), margin=0.2, by=2.1)
    'holds'
    >>> better(Difference(0.5, 0.1, 0.9, 5), margin=0.2, by=2.1)
    'holds in part'
    >>> better(Difference(-0.1, -0.3, 0.1, 5), margin=0.2), better(Difference(0.5, -0.3, 1.3, 5), margin=0.2)
    ('does not hold', 'cannot be judged')
    """
    if difference is None or difference.count < FEWEST_SEEDS or difference.low is None or difference.high is None:
        return "cannot be judged"
    if difference.low > 0:
        return "holds" if difference.mean >= by / 2 or difference.high >= by else "holds in part"
    return "does not hold" if difference.high < margin else "cannot be judged"


def equal(difference: Difference | None, margin: float) -> Verdict:
    """Whether A and B are equal.

    >>> equal(Difference(0.1, -0.4, 0.6, 5), margin=1.0), equal(Difference(3.0, 2.0, 4.0, 5), margin=1.0)
    ('holds', 'does not hold')
    """
    if difference is None or difference.count < FEWEST_SEEDS or difference.low is None or difference.high is None:
        return "cannot be judged"
    if -margin <= difference.low and difference.high <= margin:
        return "holds"
    return "does not hold" if difference.low > margin or difference.high < -margin else "cannot be judged"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict on a claim about several pairs.

    >>> together(["holds", "does not hold"]), together(["does not hold", "cannot be judged"])
    ('holds in part', 'does not hold')
    """
    told = set(verdicts)
    if told <= {"cannot be judged"}:
        return "cannot be judged"
    if told == {"holds"}:
        return "holds"
    return "holds in part" if told & {"holds", "holds in part"} else "does not hold"


@dataclass(frozen=True)
class Finding:
    """What the runs say about a claim."""

    ours: str
    """What was measured, in words."""
    verdict: Verdict
    seeds: int | None = None
    """Seeds behind the difference that has the fewest, 0 where a run is missing; None where seeds do not matter."""

    @staticmethod
    def of(ours: str, verdict: Verdict, differences: Iterable[Difference | None]) -> Finding:
        """A finding about paired differences."""
        return Finding(ours, verdict, min(0 if found is None else found.count for found in differences))


Judge = Callable[["Store", Scale], Finding]
"""What the results say about a claim."""
MISSING = Finding(NOT_RUN, "cannot be judged", 0)
"""No run is there yet."""


@dataclass(frozen=True)
class Claim:
    """One claim, where it stands, and how it is judged."""

    where: str
    says: str
    paper: str
    """The paper's number, or its word."""
    command: str
    judge: Judge

    def finding(self, store: Store, scale: Scale) -> Finding:
        """What the runs say; nothing is judged by a quick look, or while runs are missing."""
        found = self.judge(store, scale)
        return replace(found, verdict="cannot be judged") if scale.quick or found.seeds == 0 else found
