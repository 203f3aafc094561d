"""Every algorithm with settings that suit tiny data sets and small networks."""

from __future__ import annotations

from typing import Any

from kfl.algorithms import ALGORITHMS, Algorithm

OWN: dict[str, dict[str, Any]] = {
    "fedkd": {"proxy_per_class": 3},  # there are few samples to take them from
    "shared-stem": {"budget_bits": 10**6},  # the first layer of an MLP is larger than knowledge
}


def small(name: str, **options: Any) -> Algorithm:
    """An algorithm by name; options are its fields."""
    return ALGORITHMS[name](**{**OWN.get(name, {}), **options})
