"""Where the energy of a run went, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from kfl.core.text import percent, quantity, several


def dominant(compute_j: ArrayLike, upload_j: ArrayLike) -> str:
    """Return in words whether the uplink or the processor decides what a run costs: two thirds of the energy or more.

    Args:
        compute_j: Joules of computation; arrays are summed.
        upload_j: Joules of the uplink.

    >>> dominant(1.0, 3.0)
    'The uplink dominates: it takes 75.00 % of the energy, computation 25.00 %.'
    """
    computing, sending = float(np.sum(compute_j)), float(np.sum(upload_j))
    if computing + sending <= 0:
        return "No energy was spent."
    uplink, processor = sending / (computing + sending), computing / (computing + sending)
    if uplink >= 2 / 3:
        return f"The uplink dominates: it takes {percent(uplink)} of the energy, computation {percent(processor)}."
    if processor >= 2 / 3:
        return (
            f"The processor dominates: computation takes {percent(processor)} of the energy, "
            f"the uplink {percent(uplink)}."
        )
    return f"Neither dominates: computation takes {percent(processor)} of the energy, the uplink {percent(uplink)}."


def by_part(parts_j: Mapping[str, ArrayLike]) -> str:
    """Return the energy breakdown in words: the largest part first, without parts that took nothing.

    >>> by_part({"computing": [1.0, 0.5], "static": 0.0, "radiating": 1e-6, "tail": 4.5})
    'Where the energy went: tail 75.0 %, computing 25.0 %; less than 0.1 %: radiating.'
    """
    sums = {name: float(np.sum(energy_j)) for name, energy_j in parts_j.items()}
    whole = sum(sums.values())
    if whole <= 0:
        return "No energy was spent."
    kept = sorted((name for name in sums if sums[name] > 0), key=lambda name: -sums[name])
    told = [f"{name} {percent(sums[name] / whole, 1)}" for name in kept if sums[name] >= 0.001 * whole]
    tiny = [name for name in kept if sums[name] < 0.001 * whole]
    rest = f"; less than 0.1 %{' each' if len(tiny) > 1 else ''}: {', '.join(tiny)}" if tiny else ""
    return f"Where the energy went: {', '.join(told)}{rest}."


def beside_random(scheduler: str, spent_j: float, taken: int, count: int, random_j: float, random_taken: int) -> str:
    """Return what a scheduler spent on so many participations, next to so many random devices a round.

    >>> beside_random("dual", 78.0, 1184, 10, 70.0, 1000)
    'dual spent 78 J on 1,184 participations; 10 random devices a round would have spent 70 J on 1,000.'
    """
    return (
        f"{scheduler} spent {quantity(spent_j, 'J')} on {several(taken, 'participation')}; "
        f"{several(count, 'random device')} a round would have spent {quantity(random_j, 'J')} on {random_taken:,}."
    )


def certified(participation_count: Sequence[int], rounds: int, spent_j: float, least_j: float) -> str:
    """Return how often every device took part, and the certificate of the energy that this took.

    >>> certified([4, 5, 4], 20, 7.5, 7.4)
    'Every device took part in 4 to 5 of 20 rounds, for 7.5 J; certified: no schedule in which each does so as often \
spends less than 7.4 J.'
    """
    least, most = min(participation_count), max(participation_count)
    often = str(least) if least == most else f"{least} to {most}"
    return (
        f"Every device took part in {often} of {rounds} rounds, for {quantity(spent_j, 'J')}; certified: no schedule "
        f"in which each does so as often spends less than {quantity(least_j, 'J')}."
    )
