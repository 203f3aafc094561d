"""By what runs are told apart, and what a configuration in a run folder of an earlier version means today.

A run folder's configuration has every field written out, so a field that is missing tells that the version that wrote
it did not have it. Where its default would mean something else than that version did, `in_todays_words` fills it in; a
field whose absence and default mean the same needs only a line in `ADDED_LATER`. A configuration that a person writes
leaves fields out to get today's defaults, and does not come this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfl.core.config import Table
from kfl.models import PAPER_WIDTHS
from kfl.wireless.hardware import PAPER_MODEL

ADDED_LATER: Table = {
    "tested_devices": "none",
    "encoder": "auto",
    "availability_trace": "none",
    "availability_repeat_s": "none",
    "algorithm": {"targets": "random", "charge": "printed", "largest_gradient": "none"},
    "scheduler": {"device_epsilon": 0.01},
    "radio": {
        **{name: "none" if value is None else value for name, value in PAPER_MODEL.items()},
        "round_period_s": "none",
        "battery_capacity_j": "none",
        "initial_charge": 1.0,
        "harvest": "none",
        "shadowing_db": 0.0,
        "shadowing_distance_m": 50.0,
        "mobility": "none",
    },
}
"""Settings that earlier versions did not have, with the value that means the same as their absence; of a table, those
of its fields."""

AVERAGES = ("apfl", "fedavg", "fedmrl", "fedrep", "fedproto", "fd", "fedkd", "lg-fedavg")
RULE = ("aggregation", "trim")
"""Algorithms to which a robust rule was added later, and its settings."""

QUANTIZED_LATER = ("apfl", "fedavg", "fedgh", "fedkd", "fedmrl", "fedproto", "fedrep", "fedtgp", "fd", "lg-fedavg")
"""Algorithms whose uploads could be quantized later; with 32 bits they are what they were."""

UNITLESS = ("relative_v", "dearest_upload")
"""Settings that a scheduler with the printed V does not look at."""


def identity_fields(table: Table) -> Table:
    """The settings by which runs are told apart: all but those whose value means the same as their absence.

    So a run of an earlier version, which did not have a setting, is recognized and resumed.

    >>> identity_fields({"rounds": 3, "tested_devices": "none"}), identity_fields({"tested_devices": 5})
    ({'rounds': 3}, {'tested_devices': 5})
    >>> identity_fields({"scheduler": {"v": 0.01, "relative_v": 1.0}})
    {'scheduler': {'v': 0.01}}
    >>> identity_fields({"algorithm": {"name": "fedavg", "local_steps": 5, "aggregation": "mean", "trim": 0.25}})
    {'algorithm': {'name': 'fedavg', 'local_steps': 5}}
    >>> identity_fields({"radio": {"deadline_s": 2.0, "circuit_power_w": 0.0, "tail_s": 10.0}})
    {'radio': {'deadline_s': 2.0, 'tail_s': 10.0}}
    >>> identity_fields({"model": "auto", "widths": "none"})  # as written before the data could say the widths
    {'model': 'auto', 'widths': [128, 192, 256, 320, 384]}
    """
    kept = _without(table, ADDED_LATER)
    if kept.get("model") == "auto" and kept.get("widths") == "none":
        kept["widths"] = list(PAPER_WIDTHS)
    algorithm = kept.get("algorithm")
    if isinstance(algorithm, Mapping) and _is_plain_mean(algorithm):
        kept["algorithm"] = {name: value for name, value in algorithm.items() if name not in RULE}
    algorithm = kept.get("algorithm")
    if isinstance(algorithm, Mapping) and algorithm.get("name") in QUANTIZED_LATER:
        kept["algorithm"] = _without(algorithm, {"bits_per_value": 32})
    scheduler = kept.get("scheduler")
    if isinstance(scheduler, Mapping) and scheduler.get("v", "none") != "none":
        kept["scheduler"] = {name: value for name, value in scheduler.items() if name not in UNITLESS}
    return kept


def _is_plain_mean(algorithm: Mapping[str, Any]) -> bool:
    return algorithm.get("name") in AVERAGES and algorithm.get("aggregation", "mean") == "mean"


def _without(table: Mapping[str, Any], absent: Mapping[str, Any]) -> Table:
    """A table without the fields that have these values, and so in the tables within it."""
    kept = {}
    for name, value in table.items():
        inner = absent.get(name)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            kept[name] = _without(value, inner)
        elif name not in absent or value != inner:
            kept[name] = value
    return kept


def in_todays_words(table: Mapping[str, Any]) -> Table:
    """The configuration of a run folder, whichever version wrote it, in the fields and meanings of this one.

    >>> old = {"algorithm": {"name": "fedrep", "local_steps": 5, "head_steps": "none"}}
    >>> in_todays_words(old)["algorithm"]
    {'name': 'fedrep', 'local_steps': 5, 'head_steps': 3, 'body_steps': 2}
    """
    algorithm = table.get("algorithm")
    if isinstance(algorithm, Mapping) and algorithm.get("name") == "fedrep":
        return {**table, "algorithm": _fedrep(algorithm)}
    return dict(table)


def _fedrep(algorithm: Mapping[str, Any]) -> Table:
    """Without `body_steps`, τ was the number of steps of both parts together, and the head took half, rounded up."""
    steps, head = algorithm.get("local_steps"), algorithm.get("head_steps")
    if "body_steps" in algorithm or not isinstance(steps, int):
        return dict(algorithm)
    head = head if isinstance(head, int) else (steps + 1) // 2
    return {**algorithm, "head_steps": head, "body_steps": steps - head}
