"""The whole device in a problem of `kfl schedule`: what a processor and a modem draw, and what ended an upload.

A problem says how long a device computes at its fastest clock and what that takes (`compute_time_s`,
`compute_energy_j`); with its range of clocks everything else about the processor follows, because κW³ is that energy
times that time squared.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling.curve import FloatArray
from kfl.scheduling.uplink import DeviceUplink, Uplink
from kfl.wireless import Cell, LinkState

UPLOAD_BY = {
    "deadline": "all the time left",
    "clock": "what a slower clock leaves of the time",
    "circuits": "shorter, because circuits draw power",
    "full_power": "as long as full power takes",
    "least_power": "as long as the least power takes",
    "nothing": "nothing to send",
}
"""What decided how long an upload takes, in words."""
CLOCK_BY = {
    "fixed": "fixed",
    "slowest": "the slowest",
    "static": "no slower, because static power would cost more",
    "deadline": "as slow as the deadline allows",
    "fastest": "the fastest",
}
"""What decided the clock of a device, in words."""
Codes = NDArray[np.int8]
_UPLOAD, _CLOCK = tuple(UPLOAD_BY), tuple(CLOCK_BY)
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class WholeDevice:
    """What whole devices draw besides the printed model, one entry per device."""

    cpu_hz: FloatArray
    """Fastest clock; NaN where only times are known."""
    min_cpu_hz: FloatArray
    """Slowest clock; the fastest where the clock is fixed."""
    static_power_w: FloatArray
    amplifier_efficiency: FloatArray
    circuit_power_w: FloatArray
    min_power_w: FloatArray
    tail_energy_j: FloatArray
    """Opening the connection and keeping it after the last packet, in a round in which a device sends."""
    receive_energy_j: FloatArray
    """Listening to the broadcast of a round."""

    @staticmethod
    def of_cell(cell: Cell, link: LinkState) -> WholeDevice | None:
        """The devices of a cell; None where its energy model is the printed one."""
        if cell.printed_model:
            return None
        return WholeDevice(
            cpu_hz=cell.cpu_hz,
            min_cpu_hz=cell.slowest_hz,
            static_power_w=cell.static_power_w,
            amplifier_efficiency=cell.amplifier_efficiency,
            circuit_power_w=cell.circuit_power_w,
            min_power_w=np.minimum(cell.min_power_w, cell.max_power_w),
            tail_energy_j=cell.tail_j,
            receive_energy_j=cell.receive_power_w * link.reserved_s,
        )

    @property
    def printed(self) -> bool:
        """Whether all of it is the printed model after all."""
        drawn = (self.static_power_w, self.circuit_power_w, self.min_power_w)
        once = (self.tail_energy_j, self.receive_energy_j)
        slowed = self.min_cpu_hz < self.cpu_hz
        return not (slowed.any() or (self.amplifier_efficiency != 1).any() or any(one.any() for one in (*drawn, *once)))

    def uplink(self, uplink: Uplink, fastest_s: FloatArray, compute_energy_j: FloatArray) -> DeviceUplink:
        """The uplink of these devices, from that of the printed model and what computing takes at the fastest clock."""
        slower = np.where(self.min_cpu_hz < self.cpu_hz, self.cpu_hz / self.min_cpu_hz, 1.0)
        tail_j = np.where(uplink.payload_bits > 0, self.tail_energy_j, 0.0)
        return DeviceUplink(
            **{field.name: getattr(uplink, field.name) for field in fields(Uplink)},
            fastest_s=fastest_s,
            slowest_s=fastest_s * slower,
            work_j_s2=compute_energy_j * fastest_s**2,
            static_power_w=self.static_power_w,
            circuit_power_w=self.circuit_power_w,
            amplifier_efficiency=self.amplifier_efficiency,
            min_power_w=self.min_power_w,
            once_j=tail_j + self.receive_energy_j,
            receiving_j=self.receive_energy_j,
            cpu_hz=self.cpu_hz,
        )


def decided_by(
    uplink: DeviceUplink, compute_time_s: FloatArray, upload_time_s: FloatArray, power_w: FloatArray
) -> tuple[Codes, Codes]:
    """What decided how long each upload takes, and each clock, as positions in `UPLOAD_BY` and `CLOCK_BY`."""
    early = compute_time_s + upload_time_s < (uplink.upload_time_s + uplink.fastest_s) * (1 - _SAME)
    slowed = compute_time_s > uplink.fastest_s * (1 + _SAME)
    upload = np.where(early, _UPLOAD.index("circuits"), np.where(slowed, _UPLOAD.index("clock"), 0))
    least = (uplink.min_power_w > 0) & (power_w <= uplink.min_power_w * (1 + _SAME))
    upload = np.where(least, _UPLOAD.index("least_power"), upload)
    upload = np.where(power_w >= uplink.max_power_w * (1 - _SAME), _UPLOAD.index("full_power"), upload)
    upload = np.where(uplink.payload_bits > 0, upload, _UPLOAD.index("nothing"))
    clock = np.where(early, _CLOCK.index("static"), _CLOCK.index("deadline"))
    clock = np.where(compute_time_s >= uplink.slowest_s * (1 - _SAME), _CLOCK.index("slowest"), clock)
    clock = np.where(slowed, clock, _CLOCK.index("fastest"))
    free = uplink.slowest_s > uplink.fastest_s
    return upload.astype(np.int8), np.where(free, clock, _CLOCK.index("fixed")).astype(np.int8)
