"""The former place of `kfl_fleet.server.app`."""

from __future__ import annotations

from kfl.deploy import moved

app = moved("kfl_fleet.server.app")("app")
