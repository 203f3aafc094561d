"""Uplinks from flat constants, as tests write them down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kfl.scheduling import Allocation, DeviceEnergyModel, Uplink, allocate

_DEVICE = frozenset(DeviceEnergyModel.__dataclass_fields__)


def device_uplink(*, upload_time_s: Any, once_j: Any = 0.0, **constants: Any) -> Uplink:
    """Devices with these constants, of which `upload_time_s` is left after computing at the fastest clock."""
    device = {name: value for name, value in constants.items() if name in _DEVICE}
    radio = {name: value for name, value in constants.items() if name not in _DEVICE}
    device.setdefault("tail_j", once_j - device.get("receiving_j", 0.0))
    time_s = np.asarray(upload_time_s + device.get("fastest_s", 0.0))
    return Uplink(**radio, time_s=time_s, device=DeviceEnergyModel(**device))


def flat(uplink: Uplink) -> dict[str, Any]:
    """The radio's constants of an uplink, as `device_uplink` takes them."""
    radio = ("bandwidth_hz", "noise_w_per_hz", "gain", "payload_bits", "upload_time_s", "max_power_w")
    return {name: getattr(uplink, name) for name in radio}


@dataclass(frozen=True, eq=False)
class SharingProblem:
    """Who shares a band and what their joules cost, flat, so that `replace` changes anything."""

    bandwidth_hz: Any
    noise_w_per_hz: Any
    gain: Any
    payload_bits: Any
    upload_time_s: Any
    max_power_w: Any
    weight: Any
    share_floor: Any = 0.0
    fastest_s: Any = 0.0
    slowest_s: Any = 0.0
    work_j_s2: Any = 0.0
    static_power_w: Any = 0.0
    circuit_power_w: Any = 0.0
    amplifier_efficiency: Any = 1.0
    min_power_w: Any = 0.0

    def uplink(self) -> Uplink:
        own = {name: value for name, value in vars(self).items() if name not in ("weight", "share_floor")}
        return device_uplink(**own)

    def floor(self) -> Any:
        return np.maximum(self.uplink().power_floor(), self.share_floor)

    def solve(self) -> Allocation:
        return allocate(self.uplink(), self.weight, self.share_floor)
