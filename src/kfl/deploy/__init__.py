"""The same algorithm on real machines, over Flower: `pip install 'kfl[flower]'`.

A person writes one function that returns a device's model and data (`DeviceSetup`), and one TOML file for the server
(`ServerConfig`). The server app is `kfl.deploy.server:app`, the client app `kfl.deploy.client:app`.
"""

from __future__ import annotations

from kfl.deploy.device import Advice, Apply, DeviceSetup
from kfl.deploy.settings import FleetSettings, ServerConfig

__all__ = ["Advice", "Apply", "DeviceSetup", "FleetSettings", "ServerConfig"]
