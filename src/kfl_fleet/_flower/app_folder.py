"""The folder that `flwr run` sends to the fleet: Flower's app, a few lines that name kfl's server and client."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from kfl._version import __version__
from kfl.core.config import dump_toml
from kfl.core.errors import KflError
from kfl.core.files import write_atomic
from kfl.core.telemetry import hush
from kfl_fleet._flower.control_auth import read_secret
from kfl_fleet.private import private_folder

CONNECTION = "fleet"
"""Name of the SuperLink in Flower's own configuration."""


def flower_environment(flower_home: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment for Flower's programs: no telemetry unless asked for, no installing of packages, its own home."""
    found = {**given, "FLWR_HOME": str(flower_home), "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    hush(found)
    return found


SERVER_APP = 'from kfl_fleet.server.app import app\n\n__all__ = ["app"]\n'
CLIENT_APP = 'from kfl_fleet.device.client import app\n\n__all__ = ["app"]\n'


def program(name: str) -> str:
    """A program of Flower, next to this Python or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise KflError(f"The program {name} is not installed: pip install 'kfl[fleet]'.")
    return found


def write_app(folder: Path, name: str, device: str, config: Path | str = "", run_folder: Path | str = "") -> None:
    """Write the app: pyproject.toml and a package with two modules."""
    package = name.replace("-", "_")
    project = {
        "project": {
            "name": name,
            "version": "1.0.0",
            "license": "Apache-2.0",
            "dependencies": [f"kfl[fleet]=={__version__}"],
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


def write_connection(flower_home: Path, name: str, address: str, authority: Path, control: Path) -> None:
    """Write Flower's own configuration: where the SuperLink is, which authority signed its certificate, and what
    admits to its control interface, if there is such a file; `kfl_fleet._flower.control_auth` asks for it."""
    private_folder(flower_home)
    text = dump_toml({"superlink": {name: {"address": address, "root-certificates": str(authority)}}})
    write_atomic(flower_home / "config.toml", text.encode())
    if control.exists():
        secret = read_secret(control)
        facts = {"authn-type": "oidc", "oidc-access-token": secret, "oidc-refresh-token": secret}
        store = {
            f"flower.account-auth.{address}.{key}": base64.b64encode(value.encode()).decode()
            for key, value in facts.items()
        }
        write_atomic(flower_home / "credentials.yaml", json.dumps(store).encode(), private=True)  # JSON is YAML
