"""Traces: what was measured over time, from a CSV file that may be larger than memory.

    time_s,device,gain_db
    0,0,-92.5
    0,1,-101.0
    30,0,-95.1

A row holds from its time until the next row of its device: a step function. `round` may stand for `time_s`, and the
device `*` for all devices. Rows are sorted by time. The file is read once when it is opened, to check every row and
to hash it; after that it is read forward as time goes on, and only each device's current value is in memory. Going
back in time starts from the top. The values at a time are a function of the file and the time alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError, TraceError
from kfl.core.suggest import nearest

FloatArray = NDArray[np.float64]

EVERYBODY = -1
"""Stands for the device `*`."""
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
    """A column of values: its name, the values that can be right, and how a sentence says so."""

    column: str
    expected: str
    lowest: float = -math.inf
    highest: float = math.inf
    parse: Callable[[bytes], float] = float


def true_or_false(word: bytes) -> float:
    """1.0 for 1 and true, 0.0 for 0 and false.

    >>> true_or_false(b"true"), true_or_false(b"0")
    (1.0, 0.0)
    """
    return {b"1": 1.0, b"true": 1.0, b"0": 0.0, b"false": 0.0}[word.strip().lower()]


_Row = tuple[float, int, float]
"""Time in seconds, device, value."""


def _which(device: int) -> int | slice:
    """The devices a row is about, as an index."""
    return slice(None) if device == EVERYBODY else device


class _Columns(NamedTuple):
    """Which columns hold what."""

    time: int
    device: int
    value: int
    in_rounds: bool
    quantity: Quantity
    last: int


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
    ) -> None:
        self.path = path
        self._file = path.absolute()
        self._lock = Lock()  # one place in the file, which runs in several threads may share
        self.devices = devices
        self.repeat_s = repeat_s
        self.max_gap_s = max_gap_s
        self._round_s = round_s
        self._line = 0
        self._last_s = np.full(devices, -math.inf)
        self._reached = -math.inf
        try:
            with self._file.open("rb") as file:
                self._columns = self._header(file, quantities)
                self.fingerprint = self._check(file)
        except OSError as problem:
            raise TraceError(f"The trace {path} cannot be read: {problem.strerror or problem}.") from problem
        self._rewind()

    @property
    def quantity(self) -> Quantity:
        """Which of the quantities the file holds."""
        return self._columns.quantity

    # ── Values ───────────────────────────────────────────────────────────────

    def at(self, time_s: float) -> FloatArray:
        """The value of each device at a time: that of its nearest earlier row. The last one holds for ever."""
        with self._lock:
            if self.repeat_s is None:
                self.check_end(time_s)
                return self._at(time_s).copy()
            return self._at(max(time_s - math.floor(time_s / self.repeat_s + SLACK) * self.repeat_s, 0.0)).copy()

    def integral(self, start_s: float, end_s: float) -> FloatArray:
        """The integral of each device's value over a span of time, such as joules from watts."""
        with self._lock:
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
        device = int(self._last_s.argmin())
        if time_s - self._last_s[device] > self.max_gap_s:
            raise TraceError(
                f"The trace {self.path} has no row of device {device} after {self._last_s[device]:g} s, but is needed "
                f"at {time_s:g} s: a longer gap than max_gap_s, {self.max_gap_s:g} s."
            )

    def _at(self, time_s: float) -> FloatArray:
        if time_s < self._reached:
            self._rewind()
        for _, device, value in self._until(time_s * (1 + SLACK)):
            self._value[_which(device)] = value
        self._reached = time_s
        return self._value

    def _integral(self, start_s: float, end_s: float) -> FloatArray:
        self._at(start_s)
        total, since = np.zeros(self.devices), np.full(self.devices, start_s)
        for time_s, device, value in self._until(end_s):
            which = _which(device)
            total[which] += self._value[which] * (time_s - since[which])
            since[which] = time_s
            self._value[which] = value
        self._reached = end_s
        return np.asarray(total + self._value * (end_s - since))

    # ── Reading forward ──────────────────────────────────────────────────────

    def _rewind(self) -> None:
        """To before the first row. Between two calls no file is open, so that processes may be forked."""
        self._value = np.full(self.devices, math.nan)
        self._reached = -math.inf
        self._offset, self._line = self._start, self._first_line
        self._time_s = 0.0
        self._next: _Row | None = None
        with self._file.open("rb") as file:
            file.seek(self._offset)
            self._next = next(self._rows(file), None)

    def _until(self, time_s: float) -> Iterator[_Row]:
        """The rows from where we are up to a time."""
        if self._next is None or self._next[0] > time_s:
            return
        with self._file.open("rb") as file:
            file.seek(self._offset)
            yield self._next
            for row in self._rows(file):
                if row[0] > time_s:
                    self._next = row
                    return
                yield row
        self._next = None

    def _rows(self, file: BinaryIO, on_line: Callable[[bytes], object] | None = None) -> Iterator[_Row]:
        """The rows from here on, each checked; the place in the file follows them."""
        time, device, value, in_rounds, quantity, _ = self._columns
        parse, lowest, highest = quantity.parse, quantity.lowest, min(quantity.highest, sys.float_info.max)
        round_s, devices = self._round_s, self.devices
        for line in file:
            self._offset += len(line)
            self._line += 1
            if on_line is not None:
                on_line(line)
            if line.startswith(b"#") or line.isspace():
                continue
            words = (line.replace(b'"', b"") if b'"' in line else line).split(b",")
            try:  # what nearly every line is
                time_s = int(words[time]) * round_s if in_rounds else float(words[time])
                row = (time_s, int(words[device]), parse(words[value]))
            except (ValueError, LookupError, OverflowError):
                row = self._careful(words)
            if not (self._time_s <= row[0] < math.inf and 0 <= row[1] < devices and lowest <= row[2] <= highest):
                row = self._careful(words)
            self._time_s = row[0]
            yield row

    def _careful(self, words: Sequence[bytes]) -> _Row:
        """A row with everything checked, one column after another; TraceError for the first that is wrong."""
        columns = self._columns
        if len(words) <= columns.last:
            self._refuse(f"it has {len(words)} columns, but {columns.last + 1} are needed")
        time_s = self._time(words[columns.time], in_rounds=columns.in_rounds)
        if time_s < self._time_s:
            self._refuse(f"its time is {time_s:g} s, before {self._time_s:g} s: rows must be sorted by time")
        return time_s, self._device(words[columns.device]), self._number(words[columns.value])

    def _time(self, word: bytes, *, in_rounds: bool) -> float:
        try:
            time = int(word) * self._round_s if in_rounds else float(word)
        except (ValueError, OverflowError):
            time = math.nan
        if not 0 <= time < math.inf:
            right = "a whole number of rounds" if in_rounds else "a number of seconds"
            self._refuse(f"{'round' if in_rounds else 'time_s'} is {_text(word)!r}, but must be {right}, 0 or more")
        return time

    def _device(self, word: bytes) -> int:
        if word.strip() == b"*":
            return EVERYBODY
        try:
            device = int(word)
        except ValueError:
            self._refuse(f"device is {_text(word)!r}, but must be the number of a device, or * for all")
        if not 0 <= device < self.devices:
            self._refuse(f"device is {device}, but the fleet has the devices 0 to {self.devices - 1}")
        return device

    def _number(self, word: bytes) -> float:
        quantity = self._columns.quantity
        try:
            value = quantity.parse(word)
        except (ValueError, KeyError):
            value = math.nan
        if not quantity.lowest <= value <= quantity.highest or math.isinf(value):
            self._refuse(f"{quantity.column} is {_text(word)!r}, but must be {quantity.expected}")
        return value

    # ── Checking, when it is opened ──────────────────────────────────────────

    def _header(self, file: BinaryIO, quantities: Sequence[Quantity]) -> _Columns:
        raw = b""
        while (line := file.readline()) and (not line.strip() or line.startswith(b"#")):
            raw += line
            self._line += 1
        if not line:
            raise TraceError(f"The trace {self.path} is empty: its first line must name its columns.")
        self._line += 1
        self._start, self._first_line, self._top = len(raw) + len(line), self._line, raw + line
        try:
            names = [name.strip().strip('"') for name in line.decode("utf-8-sig").split(",")]
        except UnicodeDecodeError:
            names = ["\0"]
        if any(letter < " " and letter != "\t" for name in names for letter in name):
            raise TraceError(f"The trace {self.path} is not text in UTF-8: it must be a CSV file.")
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
        return _Columns(places[0], places[1], places[2], in_rounds, found[0], max(places))

    def _check(self, file: BinaryIO) -> str:
        """Read the whole file once: every row is right, every device has a value at the start. The file's hash."""
        hashed = blake2b(self._top, digest_size=16)
        self._offset, self._time_s = self._start, 0.0
        for time_s, device, _ in self._rows(file, hashed.update):
            if time_s > 0:
                self._refuse_gap(time_s, device)
            if self.repeat_s is not None and time_s >= self.repeat_s:
                self._refuse(f"its time is {time_s:g} s, but the trace repeats after {self.repeat_s:g} s")
            self._last_s[_which(device)] = time_s
        self._refuse_without_start()
        if self.repeat_s is not None:
            self._refuse_gap(self.repeat_s, EVERYBODY)
        return hashed.hexdigest()

    def _no_column(self, wanted: str, names: Sequence[str], right: Sequence[str]) -> TraceError:
        known = ("time_s", "round", "device", "gain", "gain_db", "rsrp_dbm", "watts", "available")
        free = [name for name in names if name not in known]
        meant = [(name, near) for name in free if (near := nearest(name, right, _MEANT))]
        hint = f" (is {meant[0][0]} meant to be {meant[0][1]}?)" if meant else ""
        return TraceError(f"The trace {self.path} has no column {wanted}; its columns are {', '.join(names)}{hint}.")

    def _refuse_gap(self, time_s: float, device: int) -> None:
        """At a time later than 0: the device, or every one, has an earlier row, not too long ago."""
        if device == EVERYBODY:
            device = int(self._last_s.argmin())
        before_s = self._last_s[device]
        if before_s < 0:
            self._refuse_without_start()
        if self.max_gap_s is not None and time_s - before_s > self.max_gap_s:
            raise TraceError(
                f"The trace {self.path} has no row of device {device} between {before_s:g} s and {time_s:g} s: a "
                f"longer gap than max_gap_s, {self.max_gap_s:g} s."
            )

    def _refuse_without_start(self) -> None:
        if self._last_s.min() < 0:
            device = int(self._last_s.argmin())
            raise TraceError(
                f"The trace {self.path} has no value of device {device} at time 0: every device needs a row there."
            )

    def _refuse(self, what: str) -> NoReturn:
        raise TraceError(f"Line {self._line} of the trace {self.path} cannot be used: {what}.")


def check_trace(where: str, path: str, repeat_s: float | None, max_gap_s: float | None) -> None:
    """Refuse settings of a trace that cannot work; `where` is the configuration's field that they belong to."""
    if not path:
        raise ConfigError(f"{where}.path", path, "the name of a CSV file")
    for name, value in (("repeat_s", repeat_s), ("max_gap_s", max_gap_s)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{where}.{name}", value, "a positive number of seconds, or none")


def open_trace(
    path: str | Path,
    quantities: Sequence[Quantity],
    devices: int,
    round_s: float,
    *,
    repeat_s: float | None = None,
    max_gap_s: float | None = None,
) -> Trace:
    """A trace of this many devices; TraceError, one sentence with file and line, for whatever is wrong with it.

    Args:
        path: a CSV file in UTF-8.
        quantities: the columns of values that are understood; the file has one of them.
        devices: the size of the fleet.
        round_s: seconds from the start of a round to the start of the next, for files with a column `round`.
        repeat_s: start over after this many seconds; without, the last value of each device holds.
        max_gap_s: refuse a file in which a device has no row for longer than this.

    A file that is opened again, unchanged, is not checked again.
    """
    path = Path(path)
    try:
        stat = path.stat()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise TraceError(f"The trace {path} cannot be read: {reason}.") from problem
    return _open(
        path, tuple(quantities), devices, round_s, repeat_s, max_gap_s, (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    )


@lru_cache(maxsize=8)
def _open(
    path: Path,
    quantities: tuple[Quantity, ...],
    devices: int,
    round_s: float,
    repeat_s: float | None,
    max_gap_s: float | None,
    version: tuple[int, ...],
) -> Trace:
    return Trace(path, quantities, devices, round_s, repeat_s=repeat_s, max_gap_s=max_gap_s)


def _text(word: bytes) -> str:
    """A word of a file, for a sentence."""
    text = word.strip().decode("utf-8", "replace")
    return text if len(text) <= 40 else text[:40] + "…"
