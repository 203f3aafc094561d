"""A small search with the same number of trials for every algorithm, on seeds that are not reported.

Each algorithm names its main parameter and the values to try (`Algorithm.main_parameter`). A trial is a learning
rate and a value of it. An algorithm with fewer such pairs than the others, or with no main parameter at all, is
given more learning rates instead, so that none wins by a larger search. While the best trial of an algorithm sits at an
edge of its grid, trials beyond the edge are added, up to three times; a comparison says how many trials each had.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kfl.algorithms import Algorithm
from kfl.comparison.statistics import Spread, spread
from kfl.core.errors import ConfigError

REPORTED_SEEDS = frozenset(range(5))
"""Seeds of published comparisons: tuning on them would be tuning on the test set."""
DEVELOPMENT_SEEDS = (100, 101)
"""Seeds of a search by default, never reported."""
LEARNING_RATES = (0.02, 0.05, 0.1)
WIDENINGS = 3
"""So many times a grid is widened while its best trial sits at an edge."""


@dataclass(frozen=True)
class Search:
    """The same search for every entry of a comparison, before its runs.

    >>> Search(seeds=[3])
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: seeds is '3', but must be above 4, because seeds 0 to 4 are those that are reported; \
--allow-report-seeds insists.
    """

    seeds: Sequence[int] = DEVELOPMENT_SEEDS
    """Seeds of the trials, which are never reported."""
    rates: Sequence[float] = LEARNING_RATES
    """Learning rates that every entry tries with every value of its main parameter."""
    allow_report_seeds: bool = False
    """Search on seeds 0 to 4 nevertheless, although comparisons report them."""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ConfigError("search_seeds", "", "one or more")
        taken = sorted(REPORTED_SEEDS & set(self.seeds))
        if taken and not self.allow_report_seeds:
            expected = "above 4, because seeds 0 to 4 are those that are reported; --allow-report-seeds insists"
            raise ConfigError("seeds", ",".join(map(str, taken)), expected)
        more_rates(_checked(self.rates), 1)


@dataclass(frozen=True)
class Trial:
    """One setting of one algorithm."""

    algorithm: Algorithm | None
    """None for one that was read from a file."""
    changed: Mapping[str, float]
    """The searched fields with their values."""
    is_start: bool = False
    """Whether this is the setting that the search started from."""

    @property
    def name(self) -> str:
        """What it changes, in a few words.

        >>> Trial(None, {}).name
        'as it is'
        >>> Trial(None, {"learning_rate": 0.05, "knowledge_weight": 1 / 32}).name
        'learning_rate 0.05, knowledge_weight 0.03125'
        """
        return ", ".join(f"{name} {value:.4g}" for name, value in self.changed.items()) or "as it is"


@dataclass(frozen=True)
class Outcome:
    """A trial with the accuracies it reached on the development seeds."""

    trial: Trial
    accuracy: Spread
    reached: tuple[float | None, ...] = ()
    """By seed. None is for a run that diverged, which counts as wrong everywhere."""

    @property
    def finished(self) -> int:
        """How many of its runs have a result."""
        return sum(accuracy is not None for accuracy in self.reached)


def equal_trials(
    algorithms: Mapping[str, Algorithm], rates: Sequence[float] = LEARNING_RATES
) -> dict[str, list[Trial]]:
    """The trials of every algorithm, the same number for each.

    One that takes no training steps has no learning rate: it tries its main parameter alone, or is taken as it is.

    >>> from kfl.algorithms import Kfl, Local
    >>> trials = equal_trials({"kfl": Kfl(), "local": Local()})
    >>> [len(some) for some in trials.values()], trials["kfl"][0].changed
    ([9, 9], {'learning_rate': 0.02, 'knowledge_weight': 0.01})
    """
    grids = {name: list(_grid(algorithm, sorted(set(_checked(rates))))) for name, algorithm in algorithms.items()}
    count = max((len(grid) for grid in grids.values()), default=0)
    return {name: grid + _more(algorithms[name], rates, count - len(grid)) for name, grid in grids.items()}


def _checked(rates: Sequence[float]) -> Sequence[float]:
    """Learning rates that can work; ConfigError for others."""
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ConfigError("learning_rates", rate, "numbers above 0")
    if not rates:
        raise ConfigError("learning_rates", "", "one or more numbers above 0")
    return rates


def _grid(algorithm: Algorithm, rates: Sequence[float]) -> Iterator[Trial]:
    """Learning rates × values of the main parameter, without those that the algorithm refuses."""
    field, values = algorithm.main_parameter or ("", ())
    for rate in [{"learning_rate": rate} for rate in rates] if algorithm.trains else [{}]:
        if not field:
            yield _trial(algorithm, rate)
        for value in values:
            trial = _trial(algorithm, {**rate, field: value})
            if trial.algorithm is not None and _is_valid(trial.algorithm):
                yield trial


def _more(algorithm: Algorithm, rates: Sequence[float], count: int) -> list[Trial]:
    """More learning rates, with the main parameter as it is."""
    if not algorithm.trains:
        return []
    further = more_rates(rates, len(set(rates)) + count)
    return [_trial(algorithm, {"learning_rate": rate}) for rate in further if rate not in rates]


def _trial(algorithm: Algorithm, changed: Mapping[str, Any]) -> Trial:
    tried = replace(algorithm, **changed)
    return Trial(tried, changed, tried == algorithm)


def _is_valid(algorithm: Algorithm) -> bool:
    try:
        algorithm.validate()
    except ConfigError:
        return False
    return True


def more_rates(rates: Sequence[float], count: int) -> list[float]:
    """Learning rates around and between the given ones, which stay among them: twice the largest, half the
    smallest, then the middle of the widest gap (on a logarithmic scale) again and again.

    >>> more_rates([0.02, 0.05, 0.1], 9)
    [0.01, 0.014, 0.02, 0.032, 0.05, 0.071, 0.1, 0.14, 0.2]
    """
    found = sorted(set(rates))
    if len(found) < count:
        found.append(_two_digits(2 * found[-1]))
    if len(found) < count:
        found.insert(0, _two_digits(found[0] / 2))
    while len(found) < count:
        widest = max(range(len(found) - 1), key=lambda index: (found[index + 1] / found[index], -index))
        middle = math.sqrt(found[widest] * found[widest + 1])
        short = _two_digits(middle)
        # Rounded where that is still a new rate; many rates close together need all their digits.
        found.insert(widest + 1, short if found[widest] < short < found[widest + 1] else middle)
    return found


def _two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")


def judge(trial: Trial, accuracies: Sequence[float | None]) -> Outcome:
    """The outcome of a trial. A run without a result diverged, and counts as wrong everywhere."""
    return Outcome(trial, spread([accuracy or 0.0 for accuracy in accuracies]), tuple(accuracies))


def best(outcomes: Sequence[Outcome]) -> Outcome:
    """The trial with the highest mean accuracy; of equals the first."""
    return max(outcomes, key=lambda outcome: outcome.accuracy.mean)


def edges(outcome: Outcome, outcomes: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    """Return the searched fields whose best value is the smallest or largest that was tried: its neighbor, and it."""
    found = {}
    for field, value in outcome.trial.changed.items():
        tried = sorted({other.trial.changed[field] for other in outcomes if field in other.trial.changed})
        if len(tried) > 2 and value in (tried[0], tried[-1]):
            found[field] = (tried[1] if value == tried[0] else tried[-2], value)
    return found


def at_the_edge(outcome: Outcome, outcomes: Sequence[Outcome]) -> str | None:
    """The first such field: the search may be too narrow."""
    return next(iter(edges(outcome, outcomes)), None)


def wider(algorithm: Algorithm, outcomes: Sequence[Outcome]) -> list[Trial]:
    """Trials one step beyond the edges at which the best one sits; none where it is inside or nothing lies beyond.

    >>> from kfl.algorithms import Local
    >>> tried = [judge(Trial(None, {"learning_rate": rate}), [rate]) for rate in (0.02, 0.05, 0.1)]
    >>> [trial.changed for trial in wider(Local(), tried)]
    [{'learning_rate': 0.2}]
    """
    found, trials = best(outcomes), []
    for field, (neighbor, value) in edges(found, outcomes).items():
        if not neighbor > 0 or not value > 0:
            continue
        beyond: float = _two_digits(value * value / neighbor)
        if isinstance(value, int):
            beyond = max(1, round(value * value / neighbor))
        trial = _trial(algorithm, {**found.trial.changed, field: beyond})
        if beyond != value and trial.algorithm is not None and _is_valid(trial.algorithm):
            trials.append(trial)
    return trials
