"""The devices of one round in the order in which Algorithm 3 considers them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kfl.scheduling.base import FloatArray


@dataclass(frozen=True, eq=False)
class Lineup:
    """Devices in the order of Algorithm 3, one entry each."""

    value: FloatArray
    """v = V γ D."""
    price: FloatArray
    """q, the true virtual lineup."""
    extra: float
    """ε: joules are weighted with q + ε in the allocation and with q in Y."""
    compute_energy_j: FloatArray
    scale_j: FloatArray
    exponent: FloatArray
    floor: FloatArray

    def first(self, count: int) -> Lineup:
        """The first `count` devices."""
        return Lineup(
            self.value[:count],
            self.price[:count],
            self.extra,
            self.compute_energy_j[:count],
            self.scale_j[:count],
            self.exponent[:count],
            self.floor[:count],
        )

    @property
    def weight(self) -> FloatArray:
        """q + ε, the price of a joule in the allocation."""
        return self.price + self.extra

    @property
    def log_cost(self) -> FloatArray:
        """ln(a (q + ε)); −∞ where joules are free."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.scale_j) + np.log(self.weight))
