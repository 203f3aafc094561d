"""The former place of `kfl_fleet.device.simulated`."""

from __future__ import annotations

from kfl.deploy import moved

__getattr__ = moved("kfl_fleet.device.simulated")
