"""The former place of `kfl_fleet.device.client`."""

from __future__ import annotations

from kfl.deploy import moved

app = moved("kfl_fleet.device.client")("app")
