"""The state of a run between two rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling.accounts import Accounts
from kfl.wireless import Fading

if TYPE_CHECKING:
    from kfl.models import State

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunState:
    """All that a run carries from one round to the next. A checkpoint is this."""

    accounts: Accounts
    """Round, queues, joules, charges, and who took part how often."""
    server: State
    devices: dict[int, State]
    """States of the devices that ever trained; any other device is still its seed."""
    correct: IntArray
    """Correct test predictions of each device when last tested."""
    fading: Fading | None
    untested: frozenset[int] = frozenset()
    """Devices whose model changed since they were last tested."""

    @property
    def round(self) -> int:
        """The next round to play."""
        return self.accounts.round

    def at_round(self, number: int) -> RunState:
        """Return the same state before another round."""
        return replace(self, accounts=replace(self.accounts, round=number))
