"""The same algorithm on real machines, over Flower (the extra `fleet`).

A person writes one function that returns a device's model and data (`DeviceSetup`), and one TOML file for the server
(`ServerConfig`). The server app is `kfl_fleet.server.app:app`; a device is the program `kfl deploy device`
(`kfl_fleet.device.node`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from kfl_fleet.settings import FleetSettings, ServerConfig
    from kfl_fleet.setup import Advice, Apply, DeviceSetup

_LAZY = dict.fromkeys(("Advice", "Apply", "DeviceSetup"), "kfl_fleet.setup")
_LAZY |= dict.fromkeys(("FleetSettings", "ServerConfig"), "kfl_fleet.settings")


def __getattr__(name: str) -> Any:
    """On first use: a device's node must stay small, and needs none of these."""
    return lazy_exports(__name__, _LAZY, name)


__all__ = ["Advice", "Apply", "DeviceSetup", "FleetSettings", "ServerConfig"]
