"""The paper's rule for empty queues, kept so that the difference can be measured: `Lyapunov(as_printed=True)`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kfl.scheduling.allocation import Allocation, solve_shares
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.uplink import Uplink


def printed_rule(uplink: Uplink, weight: FloatArray, floor: FloatArray) -> Allocation:
    """Section IV-B: a device with q_k = 0 gets "the minimal required bandwidth", θ^min; the rest is optimal.

    At θ^min a device sends at full power for all the time left, so this spends the most energy it can spend.
    `solve_shares` already gives θ^min to free devices next to others that have a price; only where all of them are
    free does it differ, because there it minimizes the total energy. One problem at a time, no batches.
    """
    solved = solve_shares(uplink, weight, floor)
    if not solved.feasible or ((weight > 0) & uplink.curve.sends).any():
        return solved
    energy = uplink.curve.energy_j(floor)
    run = uplink.operation(floor, energy)
    nothing = np.zeros(())
    return replace(
        solved,
        share=floor,
        power_w=run.power_w,
        energy_j=energy,
        upload_time_s=run.upload_time_s,
        multiplier=nothing,
        residual=nothing,
    )
