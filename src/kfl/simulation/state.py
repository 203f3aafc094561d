"""The state of a run between two rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling import SchedulerState
from kfl.wireless import Batteries, Fading

if TYPE_CHECKING:
    from kfl.models import State

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunState:
    """All that a run carries from one round to the next. A checkpoint is this."""

    round: int
    """The next round to play."""
    server: State
    devices: dict[int, State]
    """States of the devices that ever trained; any other device is still its seed."""
    scheduler: SchedulerState
    compute_energy_j: FloatArray
    """Spent so far, per device."""
    upload_energy_j: FloatArray
    taken: IntArray
    """Rounds each device took part in."""
    correct: IntArray
    """Correct test predictions of each device when last tested."""
    fading: Fading | None
    untested: frozenset[int] = frozenset()
    """Devices whose model changed since they were last tested."""
    batteries: Batteries | None = None
    """None where devices have no batteries but only a budget."""
