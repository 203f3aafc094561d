"""Traces: measured values over time, from a CSV file.

    time_s,device,gain_db
    0,0,-92.5
    0,1,-101.0
    30,0,-95.1

A row holds from its time until the next row of its device: a step function. `round` may stand for `time_s`, and the
device `*` for all devices. Rows are sorted by time, and every device has a value at time 0, unless the trace is opened
as `partial`. The file is checked and read into memory when it is opened, with about 28 bytes per row, so that the
values at any time are found by binary search.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, file_digest
from itertools import chain
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Range
from kfl.core.errors import TraceError
from kfl.core.suggest import nearest

FloatArray = NDArray[np.float64]

ALL_DEVICES = -1
"""The device of a row with `*`."""
MAX_BYTES = 2 * 10**9
"""Larger files are refused: traces are held in memory."""
SLACK = 1e-12
"""Relative: a sample at 29 s counts in round 100 of 0.29 s each, which begins at 28.999999999999996 s."""
_MEANT = {
    "t": "time_s",
    "time": "time_s",
    "timestamp": "time_s",
    "seconds": "time_s",
    "step": "round",
    "slot": "round",
    "id": "device",
    "node": "device",
    "client": "device",
    "user": "device",
    "ue": "device",
    "rsrp": "rsrp_dbm",
    "power_w": "watts",
    "power": "watts",
    "online": "available",
}
"""What people call the columns of a trace."""


@dataclass(frozen=True)
class Quantity:
    """A column of values: its name, its valid range, and how an error message describes that range."""

    column: str
    expected: str
    lowest: float = -math.inf
    highest: float = math.inf
    parse: Callable[[str], float] = float


def true_or_false(word: str) -> float:
    """Return 1.0 for 1 and true, 0.0 for 0 and false; KeyError for anything else.

    >>> true_or_false("true"), true_or_false("0")
    (1.0, 0.0)
    """
    return {"1": 1.0, "true": 1.0, "0": 0.0, "false": 0.0}[word.strip().lower()]


class _Header(NamedTuple):
    """Which columns hold what, and the number of the line that says so."""

    time: int
    device: int
    value: int
    in_rounds: bool
    quantity: Quantity
    line: int


class Trace:
    """One value per device, as a step function of time. Open one with `open_trace`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "sun.csv"
    >>> _ = path.write_text("time_s,device,watts\\n0,*,0\\n10,1,2.5\\n")
    >>> trace = open_trace(path, [Quantity("watts", "0 W or more", lowest=0.0)], devices=2, round_s=4.0)
    >>> trace.at(12.0), trace.integral(8.0, 12.0)
    (array([0. , 2.5]), array([0., 5.]))
    """

    def __init__(
        self,
        path: Path,
        quantities: Sequence[Quantity],
        devices: int,
        round_s: float,
        *,
        repeat_s: float | None = None,
        max_gap_s: float | None = None,
        partial: bool = False,
    ) -> None:
        self.path = path
        self.devices = devices
        self.partial = partial
        self.repeat_s = repeat_s
        self.max_gap_s = max_gap_s
        self._round_s = round_s
        try:
            if path.exists() and not path.is_file():
                raise TraceError(f"The trace {path} cannot be read: it is not a regular file.")
            if path.stat().st_size > MAX_BYTES:
                raise TraceError(
                    f"The trace {path} is larger than {MAX_BYTES // 10**9} GB, but a trace is held in memory: thin it "
                    "out, or split the run."
                )
            with path.open("rb") as file:
                self.fingerprint = file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
            with self._lines() as file:
                self._header = self._read_header(file, quantities)
            rows = self._read_fast()
            if rows is None:
                rows = np.array(list(self._read_carefully())).reshape(-1, 3)
        except OSError as problem:
            raise TraceError(f"The trace {path} cannot be read: {problem.strerror or problem}.") from problem
        if partial:
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
        # In the order of time; rows of the same moment in that of the file.
        self._time_s, self._value = rows[:, 0].copy(), rows[:, 2].copy()
        self._device = rows[:, 1].astype(np.int32)
        # The same rows sorted by device, each as the integer device · rows + row; rows of `*` come last. Searching for
        # device · rows + n then finds the last of the first n rows that is about this device.
        device = np.where(self._device == ALL_DEVICES, devices, self._device).astype(np.int64)
        self._keys = np.sort(device * len(rows) + np.arange(len(rows)))
        self._check_coverage()

    @property
    def quantity(self) -> Quantity:
        """Which of the quantities the file holds."""
        return self._header.quantity

    # ── Values ───────────────────────────────────────────────────────────────

    def at(self, time_s: float) -> FloatArray:
        """Return each device's value at a time: that of its last row by then. The last row holds forever.

        In a partial trace the value of a device is NaN before its first row.
        """
        if self.repeat_s is None:
            self.check_end(time_s)
        else:
            time_s = max(time_s - math.floor(time_s / self.repeat_s + SLACK) * self.repeat_s, 0.0)
        rows = self._last_rows(self._rows_until(time_s * (1 + SLACK)))
        return np.where(rows < 0, math.nan, self._value[rows])

    def integral(self, start_s: float, end_s: float) -> FloatArray:
        """Return the integral of each device's value over a span of time, such as joules from watts."""
        if self.repeat_s is None:
            self.check_end(end_s)
            return self._integral(start_s, end_s)
        total = np.zeros(self.devices)
        for cycle in range(math.floor(start_s / self.repeat_s), math.floor(end_s / self.repeat_s) + 1):
            low = max(start_s - cycle * self.repeat_s, 0.0)
            high = min(end_s - cycle * self.repeat_s, self.repeat_s)
            if high > low:
                total += self._integral(low, high)
        return total

    def check_end(self, time_s: float) -> None:
        """Refuse a time that is more than the largest gap after a device's last row."""
        if self.max_gap_s is None or self.repeat_s is not None:
            return
        last_s = self._time_s[self._last_rows(len(self._time_s))]
        device = int(last_s.argmin())
        if time_s - last_s[device] > self.max_gap_s:
            raise TraceError(
                f"The trace {self.path} has no row of device {device} after {last_s[device]:g} s, but is needed "
                f"at {time_s:g} s: a longer gap than max_gap_s, {self.max_gap_s:g} s."
            )

    def _rows_until(self, time_s: float) -> int:
        """Return how many rows of the file are not later than a time."""
        return int(np.searchsorted(self._time_s, time_s, side="right"))

    def _last_rows(self, count: int) -> NDArray[np.int64]:
        """Return for each device the last of the first `count` rows that is about it, by name or by `*`; else −1."""
        size = len(self._time_s)
        groups = np.arange(self.devices + 1)
        found = self._keys[np.searchsorted(self._keys, groups * size + count) - 1]
        # A key of another group means that this group has no row so early.
        rows = np.where(found // size == groups, found % size, -1)
        rows[rows >= count] = -1  # position −1 wrapped around to the last key
        return np.asarray(np.maximum(rows[:-1], rows[-1]))

    def _integral(self, start_s: float, end_s: float) -> FloatArray:
        first = self._rows_until(start_s * (1 + SLACK))
        last = max(self._rows_until(end_s), first)
        value = self._value[self._last_rows(first)].copy()
        total, since_s = np.zeros(self.devices), np.full(self.devices, start_s)
        # Rows of `*` end everyone's step, and cut the span into parts in which each row is about one device.
        cuts = first + np.flatnonzero(self._device[first:last] == ALL_DEVICES)
        for stop in [*cuts.tolist(), last]:
            self._add_steps(slice(first, stop), total, since_s, value)
            if stop < last:
                total += value * (self._time_s[stop] - since_s)
                since_s[:], value[:] = self._time_s[stop], self._value[stop]
            first = stop + 1
        return np.asarray(total + value * (end_s - since_s))

    def _add_steps(self, rows: slice, total: FloatArray, since_s: FloatArray, value: FloatArray) -> None:
        """Add the steps that end with one of these rows, in place; afterward each device is at its last row."""
        device, time_s = self._device[rows], self._time_s[rows]
        if not len(device):
            return
        order = np.argsort(device, kind="stable")
        device, time_s, new = device[order], time_s[order], self._value[rows][order]
        starts = np.flatnonzero(np.diff(device, prepend=-1))  # the first row of each device
        # Each step began at the device's row before, or where the span did.
        old, old_s = np.roll(new, 1), np.roll(time_s, 1)
        old[starts], old_s[starts] = value[device[starts]], since_s[device[starts]]
        total += np.bincount(device, weights=old * (time_s - old_s), minlength=self.devices)
        ends = np.append(starts[1:], len(device)) - 1
        since_s[device[ends]], value[device[ends]] = time_s[ends], new[ends]

    # ── Reading ──────────────────────────────────────────────────────────────

    def _lines(self) -> TextIO:
        return self.path.open(encoding="utf-8-sig", errors="replace", newline="\n")

    def _read_header(self, file: TextIO, quantities: Sequence[Quantity]) -> _Header:
        lines = ((n, text) for n, text in enumerate(file, 1) if text.strip() and not text.startswith("#"))
        number, line = next(lines, (0, ""))
        if not line:
            raise TraceError(f"The trace {self.path} is empty: its first line must name its columns.")
        names = [name.strip().strip('"') for name in line.split(",")]
        if any((letter < " " and letter != "\t") or letter == "\ufffd" for name in names for letter in name):
            raise TraceError(f"The trace {self.path} is not text in UTF-8: it must be a CSV file.")
        if line.startswith(("{", "[")):
            raise TraceError(f"The trace {self.path} is JSON, but must be CSV: its first line names its columns.")
        found = [quantity for quantity in quantities if quantity.column in names]
        values = " or ".join(quantity.column for quantity in quantities)
        for wanted, right in (("time_s", "time_s or round"), ("device", "device")):
            if wanted not in names and not (wanted == "time_s" and "round" in names):
                raise self._no_column(right, names, [wanted, "round"] if wanted == "time_s" else [wanted])
        if not found:
            raise self._no_column(values, names, [quantity.column for quantity in quantities])
        both = [quantity.column for quantity in found] if len(found) > 1 else ["time_s", "round"]
        if all(name in names for name in both):
            raise TraceError(f"The trace {self.path} has the columns {' and '.join(both)}, but must have one of them.")
        in_rounds = "time_s" not in names
        places = [names.index(name) for name in ("round" if in_rounds else "time_s", "device", found[0].column)]
        return _Header(places[0], places[1], places[2], in_rounds, found[0], number)

    def _rows(self) -> Iterator[tuple[int, str]]:
        """Yield the number and text of every line that holds a row."""
        with self._lines() as file:
            for number, line in enumerate(file, 1):
                if number > self._header.line and not line.startswith("#") and not line.isspace():
                    yield number, line

    def _read_fast(self) -> FloatArray | None:
        """Return the rows (time, device, value) if NumPy can read them and all are right; None for a careful look."""
        header, quantity = self._header, self.quantity
        lines = (line for _, line in self._rows())
        first = next(lines, None)
        if first is None:
            return None
        parsers: dict[int | str, Callable[[str], float]] = {header.device: _fast_device}
        if quantity.parse is not float:
            parsers[header.value] = quantity.parse
        try:
            rows = np.loadtxt(
                chain([first], lines),
                delimiter=",",
                comments=None,
                quotechar='"',
                usecols=(header.time, header.device, header.value),
                converters=parsers,
                encoding=None,
                ndmin=2,
            )
        except (ValueError, KeyError):
            return None
        rounds = rows[:, 0].copy() if header.in_rounds else np.zeros(1)
        if header.in_rounds:
            rows[:, 0] *= self._round_s
        time_s, device, value = rows.T
        right = (
            time_s.min() >= 0
            and (self.partial or (np.diff(time_s) >= 0).all())
            and time_s.max() < (self.repeat_s or math.inf)
            and (rounds % 1 == 0).all()
            and ((device < self.devices) & (device % 1 == 0)).all()
            and ((value >= quantity.lowest) & (value <= quantity.highest) & np.isfinite(value)).all()
        )
        return rows if right else None

    def _read_carefully(self) -> Iterator[tuple[float, int, float]]:
        """Yield the rows (time, device, value), one line after another; TraceError for the first that is wrong."""
        header = self._header
        needed, before_s = max(header.time, header.device, header.value) + 1, 0.0
        for number, line in self._rows():
            words = line.replace('"', "").split(",")
            if len(words) < needed:
                self._refuse(number, f"it has {len(words)} columns, but {needed} are needed")
            time_s = self._parse_time(number, words[header.time])
            if time_s < before_s and not self.partial:
                self._refuse(number, f"its time is {time_s:g} s, before {before_s:g} s: rows must be sorted by time")
            if self.repeat_s is not None and time_s >= self.repeat_s:
                self._refuse(number, f"its time is {time_s:g} s, but the trace repeats after {self.repeat_s:g} s")
            before_s = time_s
            yield (
                time_s,
                self._parse_device(number, words[header.device]),
                self._parse_value(number, words[header.value]),
            )

    def _parse_time(self, number: int, word: str) -> float:
        in_rounds = self._header.in_rounds
        try:
            count = float(word)
            time_s = count * self._round_s if in_rounds else count
        except ValueError:
            count = time_s = math.nan
        if not 0 <= time_s < math.inf or (in_rounds and not count.is_integer()):
            right = "an integer of rounds" if in_rounds else "a number of seconds"
            what = f"{'round' if in_rounds else 'time_s'} is {_shortened(word)!r}, but must be {right}, 0 or more"
            self._refuse(number, what)
        return time_s

    def _parse_device(self, number: int, word: str) -> int:
        if word.strip() == "*":
            return ALL_DEVICES
        try:
            device = float(word)
        except ValueError:
            device = math.nan
        if not device.is_integer():
            what = f"device is {_shortened(word)!r}, but must be the number of a device, or * for all"
            self._refuse(number, what)
        if not 0 <= device < self.devices:
            self._refuse(number, f"device is {device:.0f}, but the fleet has the devices 0 to {self.devices - 1}")
        return int(device)

    def _parse_value(self, number: int, word: str) -> float:
        quantity = self.quantity
        try:
            value = quantity.parse(word)
        except (ValueError, KeyError):
            value = math.nan
        if not quantity.lowest <= value <= min(quantity.highest, sys.float_info.max) or math.isinf(value):
            self._refuse(number, f"{quantity.column} is {_shortened(word)!r}, but must be {quantity.expected}")
        return value

    # ── Checking ─────────────────────────────────────────────────────────────

    def _check_coverage(self) -> None:
        """Refuse a device without a value at time 0, and a gap that is too long."""
        if self.partial and len(self._time_s):
            return
        at_start = self._rows_until(0.0)
        missing = np.flatnonzero(self._last_rows(at_start) < 0) if at_start else np.zeros(1, dtype=np.intp)
        if len(missing):
            raise TraceError(
                f"The trace {self.path} has no value of device {missing[0]} at time 0: every device needs a row there."
            )
        if self.max_gap_s is None:
            return
        last_s = np.zeros(self.devices)
        ends = [(self.repeat_s, ALL_DEVICES)] if self.repeat_s is not None else []
        rows = zip(self._time_s[at_start:].tolist(), self._device[at_start:].tolist(), strict=True)
        for time_s, device in [*rows, *ends]:
            late = int(last_s.argmin()) if device == ALL_DEVICES else device
            if time_s - last_s[late] > self.max_gap_s:
                raise TraceError(
                    f"The trace {self.path} has no row of device {late} between {last_s[late]:g} s and {time_s:g} s: "
                    f"a longer gap than max_gap_s, {self.max_gap_s:g} s."
                )
            last_s[slice(None) if device == ALL_DEVICES else device] = time_s

    def _no_column(self, wanted: str, names: Sequence[str], right: Sequence[str]) -> TraceError:
        known = ("time_s", "round", "device", "gain", "gain_db", "rsrp_dbm", "watts", "available")
        free = [name for name in names if name not in known]
        meant = [(name, near) for name in free if (near := nearest(name, right, _MEANT))]
        hint = f" (is {meant[0][0]} meant to be {meant[0][1]}?)" if meant else ""
        return TraceError(f"The trace {self.path} has no column {wanted}; its columns are {', '.join(names)}{hint}.")

    def _refuse(self, line: int, what: str) -> NoReturn:
        raise TraceError(f"Line {line} of the trace {self.path} cannot be used: {what}.")


GAP = Range(0, math.inf, "a positive number of seconds, or none", above=True, below=True)
"""Seconds after which a trace starts over, or that a device may be without a row."""


def open_trace(
    path: str | Path,
    quantities: Sequence[Quantity],
    devices: int,
    round_s: float,
    *,
    repeat_s: float | None = None,
    max_gap_s: float | None = None,
    partial: bool = False,
) -> Trace:
    """Read a trace for this many devices. A file that is opened again, unchanged, is not read again.

    Args:
        path: a CSV file in UTF-8.
        quantities: the columns of values that are understood; the file has one of them.
        devices: the size of the fleet.
        round_s: seconds from the start of a round to the start of the next, for files with a column `round`.
        repeat_s: start over after this many seconds; without, the last value of each device holds.
        max_gap_s: refuse a file in which a device has no row for longer than this.
        partial: accept a file without values of some devices, and rows in any order; for measurements that arrive as
            devices make them.

    Returns:
        The trace, every row checked.

    Raises:
        TraceError: one sentence with file and line for whatever is wrong with it.
    """
    path = Path(path)
    try:
        stat = path.stat()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise TraceError(f"The trace {path} cannot be read: {reason}.") from problem
    version = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return _open(path.absolute(), path, tuple(quantities), devices, round_s, repeat_s, max_gap_s, partial, version)


@lru_cache(maxsize=8)
def _open(
    place: Path,
    path: Path,
    quantities: tuple[Quantity, ...],
    devices: int,
    round_s: float,
    repeat_s: float | None,
    max_gap_s: float | None,
    partial: bool,
    version: tuple[int, ...],
) -> Trace:
    return Trace(path, quantities, devices, round_s, repeat_s=repeat_s, max_gap_s=max_gap_s, partial=partial)


def _fast_device(word: str) -> float:
    """Return a device's number, or `ALL_DEVICES` for `*`; ValueError for a negative number, which none has."""
    if word.strip() == "*":
        return ALL_DEVICES
    number = float(word)
    if not number >= 0:
        raise ValueError
    return number


def _shortened(word: str) -> str:
    """Return a word of a file, short enough for an error message."""
    text = word.strip()
    return text if len(text) <= 40 else text[:40] + "…"
