"""Channel gains from a trace: what was measured, or what another simulator computed.

    time_s,device,gain_db            or  gain       linear
    0,*,-95.0                        or  rsrp_dbm   received power per resource element, with `reference_power_dbm`
    30,0,-97.2

See `kfl.wireless.trace` for the format.

A phone reports RSRP, the power it receives of one resource element of the reference signal. The gain is RSRP less what
the base station sent per resource element, which the phone does not know: a station that spreads P dBm evenly over N
resource blocks of 12 subcarriers sends P − 10 log₁₀(12 N) dBm in each, so 43 dBm over 100 blocks (20 MHz) are 12.2 dBm.
The signal is of the downlink; the mean gain of the uplink is the same where both use nearby frequencies, its fast
fading is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from kfl.core.config import Range
from kfl.core.errors import ConfigError
from kfl.core.units import db_to_linear
from kfl.wireless.channel import Channel, Fading, FloatArray, Gains
from kfl.wireless.trace import GAP, Quantity, Trace, open_trace

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

GAIN_DB = Quantity(
    "gain_db", "a gain in dB between -300 and 0: a channel does not amplify, and dBm are not dB", -300.0, 0.0
)
GAIN = Quantity("gain", "a linear gain between 0 and 1; decibels belong in a column gain_db", 0.0, 1.0)
WEAKEST_DBM = -200.0
_REFERENCE = Range(WEAKEST_DBM, 100, f"between {WEAKEST_DBM:g} and 100 dBm")


@dataclass(frozen=True)
class GainTrace(Channel):
    """Gains from a CSV file with the columns time_s (or round), device and gain_db, gain or rsrp_dbm."""

    name: ClassVar[str] = "trace"

    path: str = ""
    """The file. A row holds until the next one of its device."""
    reference_power_dbm: Annotated[float | None, _REFERENCE] = None
    """Power of the base station per resource element, for files with rsrp_dbm: the gain is rsrp_dbm less this."""
    repeat_s: Annotated[float | None, GAP] = None
    """Start over after this many seconds; none: the last values hold for ever."""
    max_gap_s: Annotated[float | None, GAP] = None
    """Refuse a file in which a device has no row for longer than this."""

    def check(self, cell: CellConfig) -> None:
        """All about the gain is in the file; what is in it is checked with the fleet that it is for."""
        if not self.path:
            raise ConfigError("fading.path", self.path, "the name of a CSV file")
        for name in ("fading_correlation", "channel_error", "shadowing_db"):
            if getattr(cell, name) > 0:
                raise ConfigError(name, getattr(cell, name), "0 when gains come from a trace")
        if not cell.movement.stays:
            raise ConfigError("mobility", cell.movement.name, "none when gains come from a trace")

    def trace(self, cell: CellConfig, devices: int) -> Trace:
        """The file, opened for a fleet."""
        reference = self.reference_power_dbm
        highest = 0.0 if reference is None else min(0.0, reference)
        rsrp = Quantity(
            "rsrp_dbm",
            f"a received power between {WEAKEST_DBM:g} and {highest:g} dBm per resource element",
            WEAKEST_DBM,
            highest,
        )
        found = open_trace(
            self.path,
            (GAIN_DB, GAIN, rsrp),
            devices,
            cell.period_s,
            repeat_s=self.repeat_s,
            max_gap_s=self.max_gap_s,
        )
        if found.quantity.column == "rsrp_dbm" and reference is None:
            raise ConfigError(
                "fading.reference_power_dbm",
                reference,
                f"the base station's power per resource element in dBm, because {self.path} has rsrp_dbm",
            )
        if found.quantity.column != "rsrp_dbm" and reference is not None:
            raise ConfigError(
                "fading.reference_power_dbm", reference, f"left out, because {self.path} has {found.quantity.column}"
            )
        return found

    def fading(
        self, cell: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None = None
    ) -> Fading:
        """1 for every device: whatever fading there was is in the trace."""
        return Fading(round_index, np.ones(devices, dtype=np.complex128))

    def gains(
        self, cell: CellConfig, seed: int, round_index: int, start_m: FloatArray, previous: Fading | None = None
    ) -> Gains:
        """The trace's values when the round starts. The server knows them, less its margin."""
        trace = self.trace(cell, len(start_m))
        values = trace.at(round_index * cell.period_s)
        if trace.quantity is not GAIN:
            values = 10.0 ** ((values - (self.reference_power_dbm or 0.0)) / 10)
        fading = self.fading(cell, seed, round_index, len(start_m))
        return Gains(values, values * db_to_linear(-cell.channel_margin_db), fading, start_m)


def measured_gains(path: str, cell: CellConfig, devices: int) -> Callable[[int], FloatArray]:
    """Return the linear gain of each device by round, from measurements of real devices.

    Args:
        path: A trace with the column gain or gain_db; its rows may be in any order.
        cell: The cell, which says how long a round is.
        devices: The size of the fleet.

    Returns:
        A function of the round; a device without a measurement by then has NaN.

    Raises:
        TraceError: One sentence for whatever is wrong with the file.
    """
    trace = open_trace(path, (GAIN_DB, GAIN), devices, cell.period_s, partial=True)

    def at(round_index: int) -> FloatArray:
        values = trace.at(round_index * cell.period_s)
        return values if trace.quantity is GAIN else 10.0 ** (values / 10)

    return at
