"""Decibels at the edge, SI and linear inside.

>>> dbm_to_watt(30.0), db_to_linear(-30.0)
(1.0, 0.001)
"""

from __future__ import annotations

import math


def db_to_linear(value_db: float) -> float:
    """A ratio of powers in decibels as a plain number, 10^(x/10)."""
    return float(10.0 ** (value_db / 10.0))


def linear_to_db(ratio: float) -> float:
    """A ratio of powers as decibels, 10 log10 x; zero is −∞ dB.

    >>> linear_to_db(100.0)
    20.0
    """
    return 10.0 * math.log10(ratio) if ratio > 0 else -math.inf


def dbm_to_watt(power_dbm: float) -> float:
    """A power in dBm (decibels above one milliwatt) as watts. Also dBm per Hz as watts per Hz."""
    return db_to_linear(power_dbm - 30.0)


def watt_to_dbm(power_w: float) -> float:
    """A power in watts as dBm.

    >>> watt_to_dbm(1.0)
    30.0
    """
    return linear_to_db(power_w) + 30.0
