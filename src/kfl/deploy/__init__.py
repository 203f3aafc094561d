"""The same algorithm on real machines, over Flower (the extra `flower`).

A person writes one function that returns a device's model and data (`DeviceSetup`), and one TOML file for the server
(`ServerConfig`). The server app is `kfl.deploy.server:app`; a device is the program `kfl deploy device`
(`kfl.deploy.node`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from kfl.deploy.device import Advice, Apply, DeviceSetup
    from kfl.deploy.settings import FleetSettings, ServerConfig

_LAZY = dict.fromkeys(("Advice", "Apply", "DeviceSetup"), "kfl.deploy.device")
_LAZY |= dict.fromkeys(("FleetSettings", "ServerConfig"), "kfl.deploy.settings")


def __getattr__(name: str) -> Any:
    """On first use: a device's node must stay small, and needs none of these."""
    return lazy_exports(__name__, _LAZY, name)


__all__ = ["Advice", "Apply", "DeviceSetup", "FleetSettings", "ServerConfig"]
