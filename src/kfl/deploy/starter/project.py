"""A fleet's project folder, as `kfl deploy new` writes it, and where things are in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfl.core.errors import KflError
from kfl.core.parse import read_toml
from kfl.deploy.settings import ServerConfig

CONNECTION = "fleet"
"""Name of the SuperLink in Flower's own configuration."""
DEFAULT_PORT = 8000


@dataclass(frozen=True)
class Project:
    """A folder with `server.toml`, `device.toml` and the Flower app in `app/`."""

    folder: Path

    @staticmethod
    def find(folder: Path = Path()) -> Project | None:
        """The project in a folder; None where there is none."""
        found = Project(folder.resolve())
        return found if found.server_file.is_file() and (found.app / "pyproject.toml").is_file() else None

    @staticmethod
    def need(folder: Path = Path()) -> Project:
        """The project in a folder; KflError where there is none."""
        found = Project.find(folder)
        if found is None:
            raise KflError(
                f"{folder.resolve()} is no fleet's project (no server.toml, no app/pyproject.toml); "
                "go to one, or make one with kfl deploy new."
            )
        return found

    @property
    def server_file(self) -> Path:
        """The server's configuration."""
        return self.folder / "server.toml"

    @property
    def app(self) -> Path:
        """What Flower sends to the devices: the device function and two lines for server and client."""
        return self.folder / "app"

    @property
    def keys(self) -> Path:
        """Certificates and keys."""
        return self.folder / "keys"

    @property
    def run_folder(self) -> Path:
        """What the server writes: an ordinary run folder."""
        return self.folder / "run"

    @property
    def flower_home(self) -> Path:
        """Flower's own folder on the server's side (FLWR_HOME)."""
        return self.folder / "flower"

    @property
    def config(self) -> ServerConfig:
        """What server.toml says."""
        return ServerConfig.load(self.server_file)

    @property
    def device(self) -> str:
        """The device function, `package.module:function`, as the app names it."""
        try:
            project = read_toml(self.app / "pyproject.toml")
            return str(project["tool"]["flwr"]["app"]["config"]["device"])
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise KflError(
                f"{self.app / 'pyproject.toml'} does not name the device function under tool.flwr.app.config.device "
                f"({problem})."
            ) from problem

    @property
    def device_config(self) -> dict[str, Any]:
        """What device.toml says: handed to the device function."""
        path = self.folder / "device.toml"
        try:
            return read_toml(path) if path.exists() else {}
        except (OSError, ValueError) as problem:
            raise KflError(f"{path} cannot be read ({problem}).") from problem

    @property
    def port(self) -> int:
        """Where the SuperLink listens on this machine: SUPERLINK_PORT in server.env."""
        path = self.folder / "server.env"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            name, _, value = line.strip().partition("=")
            if name == "SUPERLINK_PORT" and value.isdigit():
                return int(value)
        return DEFAULT_PORT

    @property
    def address(self) -> str:
        """The SuperLink as this machine reaches it."""
        return f"127.0.0.1:{self.port}"
