"""A fleet's project folder, as `kfl deploy new` writes it: where things are in it, and its certificates and keys.

Certificates come from `certificates` and not from a shell script around openssl: its options and defaults
differ between versions and systems, and files that a fleet depends on should come from code that is tested with it.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kfl.core.errors import ConfigError, KflError
from kfl.core.parse import read_toml
from kfl_fleet._flower.app_folder import CONNECTION, write_connection
from kfl_fleet._flower.control import Control
from kfl_fleet.private import narrow, private_folder
from kfl_fleet.project.certificates import Pair, make_authority, make_device_key, make_server_certificate, write_private
from kfl_fleet.settings import ServerConfig

DEFAULT_PORT = 8000
PRIVATE = re.compile(r".*\.(key|secret)|(old-.*-)?device-\d+")
"""Names of what must not be read by others; a file of yours in the folder of keys is left alone."""


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
                f"{folder.resolve()} is not a fleet's project (no server.toml, no app/pyproject.toml); "
                "change to one, or make one with kfl deploy new."
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
    def superexec_secret(self) -> Path:
        """What the process that runs server apps shows the SuperLink, so that no other process can run any."""
        return self.keys / "superexec.secret"

    @property
    def control_secret(self) -> Path:
        """What admits to the SuperLink's control interface, so that no other user of the machine can give it orders."""
        return self.keys / "control.secret"

    def private_files(self) -> list[Path]:
        """Every private key and secret of the fleet's in the folder of keys, replaced ones too."""
        return sorted(p for p in self.keys.iterdir() if PRIVATE.fullmatch(p.name)) if self.keys.is_dir() else []

    def need_keys(self) -> None:
        """Raise KflError for a file without which the SuperLink accepts no orders."""
        for path in (self.keys / "ca.crt", self.control_secret):
            if not path.is_file():
                raise KflError(f"{path} is missing: kfl deploy keys makes it, and kfl deploy up needs none.")

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

    def control(self) -> Control:
        """The control interface of the project's SuperLink."""
        return Control(self.flower_home, self.address, self.keys, self.run_folder)

    def submit(self, control: Control) -> None:
        """Start a Flower run of the project's app."""
        control.submit(self.app, config=self.server_file, folder=self.run_folder)

    def public_key(self, device: int) -> Path:
        """The key by which a device is admitted."""
        return self.keys / f"device-{device}.pub"

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
        """Where the SuperLink listens: SUPERLINK_PORT in the environment or in server.env."""
        value = _variable(self.folder / "server.env", "SUPERLINK_PORT")
        return int(value) if value.isdigit() else DEFAULT_PORT

    @property
    def host(self) -> str:
        """Where the server's processes reach the SuperLink: this machine, or SUPERLINK_HOST among containers."""
        return _variable(self.folder / "server.env", "SUPERLINK_HOST") or "127.0.0.1"

    @property
    def address(self) -> str:
        """The SuperLink as the server's processes reach it."""
        return f"{self.host}:{self.port}"


HERE = ("localhost", "127.0.0.1")
"""The SuperLink is reached under these names on its own machine, by the proxy and the server app."""


def make_missing(project: Project, hosts: Sequence[str] = (), address: str | None = None) -> list[Path]:
    """Make what is not there yet: authority, server certificate, one key per device, and two secrets of the server's.

    What lies in the folder of keys and others could read is narrowed to its owner.

    `hosts` are the names and addresses by which devices reach the server, by default the one in device.env; `address`
    is the SuperLink's on this machine, by default the project's. Returns the files that were made.
    """
    keys, made = project.keys, []
    try:
        private_folder(keys)
        for path in project.private_files():
            narrow(path)
        authority = Pair(keys / "ca.crt", keys / "ca.key")
        if not authority.public.exists():
            made += _files(make_authority(keys, project.folder.name))
        if not (keys / "server.crt").exists():
            made += _files(_server(keys, authority, hosts or server_names(project)))
        for device in range(project.config.experiment.devices):
            if not (keys / f"device-{device}.pub").exists():
                made += _files(make_device_key(keys, device))
        for secret in (project.superexec_secret, project.control_secret):
            if not secret.exists():
                write_private(secret, secrets.token_hex(32).encode())
                made.append(secret)
        write_connection(
            project.flower_home, CONNECTION, address or project.address, authority.public, project.control_secret
        )
    except OSError as problem:
        raise KflError(f"The keys in {keys} cannot be written ({problem.strerror or problem}).") from problem
    return made


def renew_server(project: Project, hosts: Sequence[str] = ()) -> Path:
    """A new server certificate of the same authority, for more names or because the old one ends; devices notice
    nothing. Restart the SuperLink and reload the proxy afterward."""
    keys = project.keys
    authority = Pair(keys / "ca.crt", keys / "ca.key")
    if not authority.private.exists():
        raise KflError(f"{authority.private} is not there; bring it back from where you keep it, for this one command.")
    with tempfile.TemporaryDirectory(dir=keys) as folder:
        pair = _server(Path(folder), authority, hosts or server_names(project))
        pair.private.replace(keys / "server.key")
        pair.public.replace(keys / "server.crt")
    return keys / "server.crt"


def replace_device_key(project: Project, device: int) -> Pair:
    """A new key pair for a device; the old one is kept under another name, so that it can still be revoked."""
    count = project.config.experiment.devices
    if not 0 <= device < count:
        raise ConfigError("replace", device, f"the number of a device, from 0 to {count - 1}")
    keys, stamp = project.keys, f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for name in (f"device-{device}", f"device-{device}.pub"):
        if (keys / name).exists():
            (keys / name).replace(keys / f"old-{stamp}-{name}")
    return make_device_key(keys, device)


def server_names(project: Project) -> list[str]:
    """The names the server is known by: SERVER in device.env, and among containers the proxy's and the SuperLink's."""
    value = _variable(project.folder / "device.env", "SERVER")
    inside = () if project.host == "127.0.0.1" else (project.host, "proxy")
    return [*([value.rpartition(":")[0].strip("[]") or value] if value else ()), *inside]


def _variable(path: Path, wanted: str) -> str:
    """The value of a variable: of the environment, or the first in a file of NAME=value lines; empty without one."""
    if os.environ.get(wanted):
        return os.environ[wanted]
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as problem:
        raise KflError(f"{path} cannot be read ({problem}); it must hold lines such as {wanted}=value.") from problem
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name == wanted and value:
            return value
    return ""


def _server(folder: Path, authority: Pair, hosts: Sequence[str]) -> Pair:
    return make_server_certificate(folder, authority, list(dict.fromkeys((*hosts, *HERE))))


def _files(pair: Pair) -> list[Path]:
    return [pair.public, pair.private]
