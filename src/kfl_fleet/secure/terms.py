"""What every device adds in a secure sum: where each value and each weight has its place in the vector."""

from __future__ import annotations

from collections.abc import Mapping

from kfl_fleet.secure.grid import Layout

Shapes = Mapping[str, tuple[int, ...]]
ANSWERS = {"share": "boxes", "mask": "masked", "reveal": "shares"}
"""The array that answers each step."""
CHECKS = 2
"""Entries of a vector that check the others."""
VALUES, WEIGHTS = "values/", "weights/"


def sum_layout(
    values: Shapes,
    weights: Shapes,
    *,
    largest_weight: float,
    value_range: float,
    devices: int,
    bits: int,
    checks: int = CHECKS,
    session: bytes = b"",
) -> Layout:
    """Where everything that is added has its place: weights as they are, values times their weights."""
    bounds = {VALUES + name: largest_weight * value_range for name in values}
    bounds |= {WEIGHTS + name: largest_weight for name in weights}
    shapes = {VALUES + name: tuple(shape) for name, shape in values.items()}
    shapes |= {WEIGHTS + name: tuple(shape) for name, shape in weights.items()}
    return Layout(shapes, bounds, devices, bits, checks, session)
