"""Uplinks from flat constants, as tests write them down."""

from __future__ import annotations

from typing import Any

import numpy as np

from kfl.scheduling import DeviceEnergyModel, Uplink

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
