"""The cell of a run that names none: the paper's radio and processors, sized to the data and the networks.

The rule, with the usual work of a device the forward passes of five passes over its samples:

* The band is the paper's 5 MHz, and so are gains, powers and clocks.
* A round lasts until the slowest clock has done ten times the largest usual work, and ten devices have then sent whole
  networks at 4 bit/s per hertz.
* All budgets together pay, at the mean clock, for the usual work of ten mean devices in each round. All devices have
  the same: for ten times the mean work at the least, and for twice the largest. No device may overdraw it.
* Time and joules to encode all samples once come on top, for the algorithms that need an encoder.

So computing dominates, and with more than ten devices energy is scarce. The rule looks at nothing that an algorithm
sets: all meet the same cell.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from kfl.core.text import quantity
from kfl.wireless.channel import FloatArray
from kfl.wireless.config import CellConfig
from kfl.wireless.costs import compute_energy, compute_time

USUAL_PASSES = 5
"""Passes over the local data that count as usual; the default of `local_steps`."""
SLACK = 10
"""The deadline leaves time for so many times the usual work."""
TOGETHER = 10
"""Budgets pay for so many devices a round, and the band carries so many networks: the `count` of random devices."""
LEAST_ROUNDS = 10
"""Budgets pay for so many rounds at the least, so that a short trial is about learning."""
BITS_PER_S_PER_HZ = 4.0
"""Reached at the edge of the cell with a ten-thousandth of the largest power."""


def sized_cell(
    pass_flops: FloatArray, model_bits: FloatArray, rounds: int, once_flops: FloatArray | float = 0.0
) -> CellConfig:
    """Return the cell whose deadline and budget follow from data and networks.

    >>> cell = sized_cell(np.full(50, 2e7), np.full(50, 6.4e6), rounds=100)
    >>> cell.deadline_s, cell.budget_j_per_round, cell.bandwidth_hz
    (3.5, 0.0064, 5000000.0)

    Args:
        pass_flops: Work of one forward pass over all samples, of each device.
        model_bits: Size of each device's network.
        rounds: Number of rounds.
        once_flops: Work of each device that comes on top once: encoding its samples.
    """
    cell, usual, together = CellConfig(), USUAL_PASSES * pass_flops, min(TOGETHER, len(pass_flops))
    clocks, times = np.asarray(cell.cpu_frequencies_hz), max(rounds * together / len(usual), LEAST_ROUNDS)
    slowest_s = compute_time(SLACK * usual + once_flops, clocks.min(), cell.flops_per_cycle)
    upload_s = together * float(model_bits.max()) / (BITS_PER_S_PER_HZ * cell.bandwidth_hz)
    joules = partial(compute_energy, flops_per_cycle=cell.flops_per_cycle, power_coefficient=cell.power_coefficient)
    mean_j = joules((times * usual + once_flops).mean(), clocks).mean()
    most_j = joules((2 * usual + once_flops).max(), clocks.max())
    return CellConfig(
        deadline_s=_rounded_up(float(slowest_s.max()) + upload_s),
        budget_j_per_round=_rounded_up(float(max(mean_j, most_j)) / rounds),
    )


def describe_sized_cell(cell: CellConfig, rounds: int) -> str:
    """Return what a run with such a cell begins with."""
    budget = quantity(cell.budget_j_per_round * rounds, "J")
    return (
        f"No cell is named, so this one is sized to the data and the networks: {quantity(cell.bandwidth_hz, 'Hz')}, "
        f"rounds of {quantity(cell.deadline_s, 's')}, and {budget} for each device that no device may overdraw. "
        "--radio chooses another."
    )


def _rounded_up(value: float) -> float:
    """Return two significant digits, for readers."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1.0
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.2g}")
