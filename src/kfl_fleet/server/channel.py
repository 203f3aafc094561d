"""Measured channel gains of real devices, read from a file.

A file has one measurement per line, CSV with the columns round, device and gain, or JSON lines with those keys. A gain
is linear (1e-9, not −90 dB) and holds from its round on until the next measurement of the same device.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.core.parse import parse_json

FloatArray = NDArray[np.float64]
LARGEST_GAIN = 1e6
"""A larger gain is a mistake, such as one in decibels."""


@dataclass(frozen=True)
class Measurements:
    """Gains by device and round.

    >>> measured = Measurements({0: ((0, 1e-9), (5, 2e-9))})
    >>> measured.at(4, 2), measured.at(5, 2)
    (array([1.e-09,    nan]), array([2.e-09,    nan]))
    """

    by_device: Mapping[int, tuple[tuple[int, float], ...]]

    def at(self, round_index: int, devices: int) -> FloatArray:
        """The last gain of each device up to a round; NaN for a device that has none yet."""
        gains = np.full(devices, nan)
        for device, series in self.by_device.items():
            if device < devices:
                known = [gain for first, gain in series if first <= round_index]
                gains[device] = known[-1] if known else nan
        return gains


def read_gains(path: Path) -> Measurements:
    """Read a file of measured gains; a DataError names the first invalid entry."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"The file of gains {path} cannot be read ({problem}).") from problem
    rows = _json_rows(path, text) if text.lstrip().startswith("{") else csv.DictReader(io.StringIO(text))
    found: dict[int, dict[int, float]] = {}
    for line, row in enumerate(rows, start=1):
        try:
            round_index, device, gain = int(row["round"]), int(row["device"]), float(row["gain"])
        except (KeyError, TypeError, ValueError) as problem:
            raise DataError(
                f"Entry {line} of {path} is not a measurement: it needs round, device and gain."
            ) from problem
        if round_index < 0 or device < 0 or not 0 < gain < min(inf, LARGEST_GAIN):
            raise DataError(
                f"Entry {line} of {path} says round {round_index}, device {device}, gain {gain:g}: rounds and devices "
                "count from 0, and a gain is a positive number, linear and not in decibels."
            )
        found.setdefault(device, {})[round_index] = gain
    if not found:
        raise DataError(f"The file of gains {path} holds no measurement.")
    return Measurements({device: tuple(sorted(series.items())) for device, series in found.items()})


def _json_rows(path: Path, text: str) -> Iterable[Mapping[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                row = parse_json(line)
            except ValueError as problem:
                raise DataError(f"Line {number} of {path} is not JSON ({problem}).") from problem
            if not isinstance(row, dict):
                raise DataError(f"Line {number} of {path} is not a measurement: it needs round, device and gain.")
            yield row
