"""Schedules and splits made up for the bound: how many devices take part in which round, and who holds which class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.scheduling import Ascend, Descend, Uniform

PATTERNS = {pattern.name: pattern for pattern in (Uniform, Ascend, Descend)}
"""The temporal patterns of the paper's section V, all with the same total."""


def pattern_schedule(name: str, rounds: int, devices: int, count: int = 10) -> NDArray[np.bool_]:
    """Who takes part in which round, (T, K), when the number of devices follows a pattern and they take turns.

    >>> pattern_schedule("ascend", rounds=5, devices=20, count=10).sum(axis=1)
    array([ 1,  6, 10, 14, 19])
    """
    if name not in PATTERNS:
        raise ConfigError("schedule", name, f"one of {', '.join(PATTERNS)}")
    for field, value in (("rounds", rounds), ("devices", devices)):
        if value < 1:
            raise ConfigError(field, value, "1 or more")
    pattern = PATTERNS[name](count=count)
    sizes = [pattern.size(t, rounds) for t in range(rounds)]
    if max(sizes) > devices:
        raise ConfigError("count", count, f"smaller: the schedule {name} asks for {max(sizes)} of {devices} devices")
    schedule = np.zeros((rounds, devices), dtype=bool)
    first = 0
    for t, size in enumerate(sizes):
        schedule[t, (first + np.arange(size)) % devices] = True
        first += size
    return schedule


def equal_counts(devices: int, classes: int, classes_per_device: int, samples: int) -> NDArray[np.int64]:
    """Samples of each class on each device, (K, C), where each holds `classes_per_device` classes in equal parts.

    >>> equal_counts(devices=3, classes=4, classes_per_device=2, samples=10)
    array([[5, 5, 0, 0],
           [0, 0, 5, 5],
           [5, 5, 0, 0]])
    """
    for field, value in (("devices", devices), ("classes", classes), ("samples", samples)):
        if value < 1:
            raise ConfigError(field, value, "1 or more")
    if not 1 <= classes_per_device <= classes:
        raise ConfigError("classes_per_device", classes_per_device, f"from 1 to {classes}, the number of classes")
    if samples % classes_per_device:
        raise ConfigError("samples", samples, f"a multiple of {classes_per_device}, the classes on a device")
    counts = np.zeros((devices, classes), dtype=np.int64)
    held = (np.arange(devices)[:, None] * classes_per_device + np.arange(classes_per_device)) % classes
    np.put_along_axis(counts, held, samples // classes_per_device, axis=1)
    return counts
