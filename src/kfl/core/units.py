"""Decibels at the edge, SI and linear inside.

>>> dbm_to_watt(30.0), db_to_linear(-30.0)
(1.0, 0.001)
"""

from __future__ import annotations


def db_to_linear(value_db: float) -> float:
    """A ratio of powers in decibels as a plain number, 10^(x/10)."""
    return float(10.0 ** (value_db / 10.0))


def dbm_to_watt(power_dbm: float) -> float:
    """A power in dBm (decibels above one milliwatt) as watts. Also dBm per Hz as watts per Hz."""
    return db_to_linear(power_dbm - 30.0)
