"""Processors and transmitters of devices: what the energy model of every round is computed from.

The paper charges a processor at a fixed clock and the radiated power alone; `kfl.scheduling.uplink` says what else a
real device draws.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kfl.core.randomness import stream
from kfl.core.units import dbm_to_watt
from kfl.scheduling.arrays import PerDevice
from kfl.scheduling.uplink import DeviceEnergyModel
from kfl.wireless.channel import FloatArray
from kfl.wireless.costs import compute_time

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

PAPER_MODEL = {
    "min_cpu_hz": None,
    "static_power_w": 0.0,
    "amplifier_efficiency": 1.0,
    "circuit_power_w": 0.0,
    "min_power_dbm": None,
    "connect_energy_j": 0.0,
    "receive_power_w": 0.0,
    "tail_power_w": 0.0,
    "tail_s": 0.0,
}
"""Fields of a cell that the paper's energy model does not have, with the values that mean it."""


@dataclass(frozen=True, eq=False)
class Hardware:
    """Processor and transmitter of each device; one entry per device.

    >>> from kfl.wireless import CellConfig
    >>> hardware = Hardware.build(CellConfig(), devices=3, seed=0)
    >>> hardware.is_paper_model, hardware.energy_model(np.full(3, 1e9), np.ones(3)).is_paper_model
    (True, True)
    """

    cpu_hz: FloatArray
    """Clock f_k; the fastest where the device can choose."""
    flops_per_cycle: FloatArray
    """n_k."""
    power_coefficient: FloatArray
    """κ of each device's chip."""
    max_power_w: FloatArray
    """Largest radiated power."""
    min_cpu_hz: FloatArray
    """Slowest clock; infinite where the clock is fixed at `cpu_hz`."""
    static_power_w: FloatArray
    """Drawn while the processor computes."""
    circuit_power_w: FloatArray
    """Drawn while the radio sends."""
    amplifier_efficiency: FloatArray
    """Radiated over drawn power."""
    min_power_w: FloatArray
    """Least radiated power while sending."""
    tail_j: FloatArray
    """Opening a connection, and keeping it after the last packet."""
    receive_power_w: FloatArray
    """Drawn during the time reserved for the broadcast."""

    @staticmethod
    def build(config: CellConfig, devices: int, seed: int) -> Hardware:
        """Draw the devices' clocks; everything else is the cell's."""
        pick = stream(seed, "cpu").random(devices) * len(config.cpu_frequencies_hz)
        least_w = 0.0 if config.min_power_dbm is None else dbm_to_watt(config.min_power_dbm)
        return Hardware(
            cpu_hz=np.asarray(config.cpu_frequencies_hz, dtype=np.float64)[pick.astype(np.int64)],
            flops_per_cycle=np.full(devices, config.flops_per_cycle),
            power_coefficient=np.full(devices, config.power_coefficient),
            max_power_w=np.full(devices, config.max_power_w),
            min_cpu_hz=np.full(devices, np.inf if config.min_cpu_hz is None else config.min_cpu_hz),
            static_power_w=np.full(devices, config.static_power_w),
            circuit_power_w=np.full(devices, config.circuit_power_w),
            amplifier_efficiency=np.full(devices, config.amplifier_efficiency),
            min_power_w=np.full(devices, least_w),
            tail_j=np.full(devices, config.connect_energy_j + config.tail_power_w * config.tail_s),
            receive_power_w=np.full(devices, config.receive_power_w),
        )

    @property
    def slowest_hz(self) -> FloatArray:
        """Slowest clock of each device; its only one where that is fixed."""
        return np.minimum(self.min_cpu_hz, self.cpu_hz)

    @cached_property
    def is_paper_model(self) -> bool:
        """Whether the energy model is the paper's for every device."""
        drawn = (self.static_power_w, self.circuit_power_w, self.min_power_w, self.tail_j, self.receive_power_w)
        fixed = (self.slowest_hz == self.cpu_hz).all() and (self.amplifier_efficiency == 1).all()
        return bool(fixed) and not any(power.any() for power in drawn)

    def energy_model(self, flops: FloatArray, payload_bits: FloatArray, reserved_s: float = 0.0) -> DeviceEnergyModel:
        """Return what devices draw in a round.

        Args:
            flops: Work of each device, τ D C as printed.
            payload_bits: Upload of each device; one that sends nothing opens no connection.
            reserved_s: Seconds of the broadcast, to which all listen.
        """
        fastest_s = compute_time(flops, self.cpu_hz, self.flops_per_cycle)
        if self.is_paper_model:
            return DeviceEnergyModel(fastest_s=fastest_s, cpu_hz=self.cpu_hz, min_cpu_hz=self.cpu_hz)
        with np.errstate(over="ignore"):
            work_j_s2 = self.power_coefficient * (flops / self.flops_per_cycle) ** 3
        return DeviceEnergyModel(
            fastest_s=fastest_s,
            slowest_s=compute_time(flops, self.slowest_hz, self.flops_per_cycle),
            work_j_s2=work_j_s2,
            static_power_w=_one_number(self.static_power_w),
            circuit_power_w=_one_number(self.circuit_power_w),
            amplifier_efficiency=_one_number(self.amplifier_efficiency),
            min_power_w=_one_number(np.minimum(self.min_power_w, self.max_power_w)),
            tail_j=_one_number(np.where(payload_bits > 0, self.tail_j, 0.0)),
            receiving_j=_one_number(self.receive_power_w * reserved_s),
            cpu_hz=self.cpu_hz,
            min_cpu_hz=self.slowest_hz,
        )

    def describe(self, device: int) -> dict[str, float]:
        """Return a device's processor and transmitter: what its costs are computed from."""
        facts = {name: float(getattr(self, name)[device]) for name in (one.name for one in fields(self))}
        if self.is_paper_model:
            return {name: facts[name] for name in ("cpu_hz", "flops_per_cycle", "power_coefficient", "max_power_w")}
        return facts | {
            "min_cpu_hz": min(facts["min_cpu_hz"], facts["cpu_hz"]),
            "min_power_w": min(facts["min_power_w"], facts["max_power_w"]),
        }

    def columns(self) -> dict[str, FloatArray]:
        """Return what `describe` says of each device, one array for each fact."""
        facts = {one.name: np.asarray(getattr(self, one.name), dtype=np.float64) for one in fields(self)}
        if self.is_paper_model:
            return {name: facts[name] for name in ("cpu_hz", "flops_per_cycle", "power_coefficient", "max_power_w")}
        return facts | {
            "min_cpu_hz": np.minimum(facts["min_cpu_hz"], facts["cpu_hz"]),
            "min_power_w": np.minimum(facts["min_power_w"], facts["max_power_w"]),
        }


def _one_number(values: FloatArray) -> PerDevice:
    """Return one number where all devices have the same: fewer arrays to pass through every round."""
    return float(values[0]) if values.size and values.min() == values.max() else values
