"""The folder that `flwr run` sends to the fleet: Flower's app, a few lines that name kfl's server and client."""

from __future__ import annotations

from pathlib import Path

from kfl._version import __version__
from kfl.core.config import dump_toml
from kfl.core.files import write_atomic

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What every process of Flower should find in its environment: no telemetry, and no installing of packages."""

SERVER_APP = 'from kfl.deploy.server import app\n\n__all__ = ["app"]\n'
CLIENT_APP = 'from kfl.deploy.client import app\n\n__all__ = ["app"]\n'


def write_app(folder: Path, name: str, device: str, config: Path | str = "", run_folder: Path | str = "") -> None:
    """Write the app: pyproject.toml and a package with two modules."""
    package = name.replace("-", "_")
    project = {
        "project": {
            "name": name,
            "version": "1.0.0",
            "license": "Apache-2.0",
            "dependencies": [f"kfl[flower]=={__version__}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "kfl",
                    "components": {
                        "serverapp": f"{package}.server_app:app",
                        "clientapp": f"{package}.client_app:app",
                    },
                    "config": {"config": str(config), "folder": str(run_folder), "device": device},
                }
            }
        },
    }
    (folder / package).mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "pyproject.toml", dump_toml(project).encode())
    write_atomic(folder / package / "__init__.py", b"")
    write_atomic(folder / package / "server_app.py", SERVER_APP.encode())
    write_atomic(folder / package / "client_app.py", CLIENT_APP.encode())


def write_connection(flower_home: Path, name: str, address: str, authority: Path) -> None:
    """Write Flower's own configuration: where the SuperLink is, and which authority signed its certificate."""
    flower_home.mkdir(parents=True, exist_ok=True)
    text = dump_toml({"superlink": {name: {"address": address, "root-certificates": str(authority)}}})
    write_atomic(flower_home / "config.toml", text.encode())
