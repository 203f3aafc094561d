"""Who can never take part in a cell, and why, before a run of many rounds finds out.

The radio of every round follows from its address (seed, round), so the first rounds can be looked at without playing
them. A device that cannot finish in time, or that a round costs more than its whole budget, never takes part; one that
the server does not hear well enough in any of the first rounds hardly ever will.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kfl.core.text import quantity, several
from kfl.scheduling import Observation
from kfl.scheduling.share_band import by_reason, standing
from kfl.scheduling.status import OUTCOMES

if TYPE_CHECKING:
    from kfl.simulation.fleet import Fleet
    from kfl.simulation.state import RunState

ROUNDS = 20
"""So many rounds are looked at."""
MOST_LOOKS = 2_000_000
"""Devices × rounds that are looked at; of larger fleets fewer rounds."""
WAITING = ("unavailable", "empty")
"""Reasons that pass: a device may come, and a battery may fill."""


@dataclass(frozen=True)
class Feasibility:
    """What the first rounds say of a fleet."""

    devices: int
    never: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Devices that can never take part, by reason: one of `OUTCOMES`."""
    why: Mapping[str, str] = field(default_factory=dict)
    """What decides, in numbers, and what would help, by reason."""

    @property
    def count(self) -> int:
        """How many can never take part."""
        return sum(len(who) for who in self.never.values())

    @property
    def nobody(self) -> bool:
        """Whether no device is left."""
        return self.count == self.devices

    def sentence(self) -> str:
        """Who cannot take part and why, for a person; empty where every device can."""
        if not self.never:
            return ""
        parts = [f"{several(len(who), 'device')} {self.why[reason]}" for reason, who in self.never.items()]
        start = "No device can" if self.nobody else f"{self.count:,} of {self.devices:,} devices can never"
        return f"{start} take part: {'; '.join(parts)}."


def check_feasibility(fleet: Fleet, state: RunState) -> Feasibility:
    """Look at the first rounds of a fleet, before any is played."""
    if fleet.cell is None or not fleet.table.size:
        return Feasibility(fleet.table.size)
    looks = max(1, min(ROUNDS, fleet.experiment.rounds, MOST_LOOKS // fleet.table.size))
    first = fleet.observe(state).observation
    outcome, able = standing(first), np.zeros(fleet.table.size, bool)
    passing = [list(OUTCOMES).index(reason) for reason in ("scheduled", "not_chosen", *WAITING)]
    for number in range(looks):
        seen = outcome if number == 0 else standing(fleet.observe(state.at_round(number)).observation)
        able |= np.isin(seen, passing)
        if able.all():
            return Feasibility(fleet.table.size)
    never = by_reason(outcome, ~able)
    return Feasibility(fleet.table.size, never, {reason: _why(reason, first, who) for reason, who in never.items()})


def _why(reason: str, seen: Observation, who: tuple[int, ...]) -> str:
    """The numbers of the device that comes nearest, and what would help."""
    some, uplink = list(who), seen.uplink
    assert uplink is not None  # without a radio every device can
    if reason == "past_deadline":
        work_s = float(seen.compute_time_s[some].min())
        left_s = float((seen.compute_time_s[some] + uplink.upload_time_s[some]).max())
        return (
            f"cannot finish computing in time (the fastest needs {quantity(work_s, 's')}, and a round has "
            f"{quantity(left_s, 's')}): give a longer --radio.deadline-s, less work (--samples-per-device, "
            "--algorithm.local-steps, a smaller --model), or --radio none"
        )
    if reason == "out_of_reach":
        rate = uplink.bandwidth_hz * np.log2(1 + uplink.snr[some])
        needed_s = uplink.payload_bits[some] / np.maximum(rate, 1e-300)
        best = int(np.argmin(needed_s / uplink.upload_time_s[some]))
        return (
            f"cannot upload {quantity(float(uplink.payload_bits[some][best]), 'bit')} in time (with the whole band at "
            f"full power it takes {quantity(float(needed_s[best]), 's')}, and there are "
            f"{quantity(float(uplink.upload_time_s[some][best]), 's')}): give a wider --radio.bandwidth-hz, a longer "
            "--radio.deadline-s, or --radio none"
        )
    cost_j, budget_j = float(seen.base_energy_j[some].min()), float(seen.battery_j[some].max())
    return (
        f"cannot pay for a single round (it takes at least {quantity(cost_j, 'J')} before the upload, of a budget of "
        f"{quantity(budget_j, 'J')} for all rounds): give a larger --radio.budget-j-per-round, less work, or no "
        "--hard-budget"
    )
