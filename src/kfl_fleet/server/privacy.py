"""How much privacy each device of a fleet has spent so far, where uploads have noise (`kfl.algorithms.privacy`).

A device pays for every round in which its upload may have left it: also for those that came late, were lost or refused,
because anyone who reads the network or the server saw them or may have. Only a broadcast that did not reach it, and a
message that never left the server, cost nothing. A round that is played again after a crash is answered from the
device's disk with the same upload, and counts once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from kfl.algorithms.privacy import PrivacyCost, privacy_cost
from kfl.core.errors import MissingExtraError
from kfl_fleet.logs import warn

if TYPE_CHECKING:
    from kfl.algorithms import Algorithm
    from kfl.runfolder import RoundLog
    from kfl_fleet.messages.profile import Profile

DELTA = 1e-5


@dataclass
class PrivacyLedger:
    """Uploads of each device, and what they cost."""

    algorithm: Algorithm
    delta: float = DELTA
    uploads: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.on = float(getattr(self.algorithm, "noise_multiplier", 0.0)) > 0
        """Whether uploads have noise, so that there is something to account for."""
        self._cost = lru_cache(maxsize=4096)(self._uncached)

    def count(self, entry: RoundLog) -> None:
        """Add a round."""
        free = {*entry.missed, *(fault["device"] for fault in entry.faults if fault.get("fault") == "unsent")}
        self.uploads.update(device for device in entry.devices if device not in free)

    def spent(self, device: int, profile: Profile) -> PrivacyCost | None:
        """What a device has spent; None where uploads have no noise, or the accountant is not installed."""
        if not self.on:
            return None
        # Where counts are a secret, the worst that they can be: all samples of one class.
        hidden = (profile.samples, *[0] * (profile.classes - 1))
        try:
            return self._cost(self.uploads[device], tuple(sorted(profile.samples_per_class or hidden)))
        except MissingExtraError as problem:
            warn("privacy_unknown", f"{problem} Until then it is unknown what the devices' uploads reveal.")
            self.on = False
            return None

    def record(self, device: int, profile: Profile) -> dict[str, float] | None:
        """The same as plain values, for run folders."""
        cost = self.spent(device, profile)
        if cost is None:
            return None
        return {
            "uploads": self.uploads[device],
            "epsilon": cost.epsilon,
            "delta": cost.delta,
            "epsilon_with_training": cost.epsilon_with_training,
        }

    def _uncached(self, uploads: int, class_counts: tuple[int, ...]) -> PrivacyCost:
        return privacy_cost(self.algorithm, uploads, class_counts, self.delta)
