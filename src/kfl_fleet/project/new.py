"""Write a new project for a fleet: files from `template/`, with names and addresses filled in."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from kfl._version import __version__
from kfl.core.errors import ConfigError, KflError
from kfl.core.files import write_atomic
from kfl_fleet._flower.app_folder import write_app
from kfl_fleet.project.dashboard import dashboard
from kfl_fleet.project.project import Project

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")
HOME = re.compile(r"(/[A-Za-z0-9._-]+)+")
TORCH = "2.13.0"
"""PyTorch in the images."""
TRIED = 3
"""Devices that compose.yaml can start next to the server, to try; real ones are elsewhere."""


def write_project(folder: Path, devices: int = 3, host: str = "fleet.example.org", home: str | None = None) -> Project:
    """Write a project into a new folder, whose name becomes the fleet's.

    Args:
        folder: where; it must not hold anything yet.
        devices: how many there will be.
        host: name or address by which devices reach the server.
        home: folder of the project on server and devices, for the systemd units; by default /opt and its name.
    """
    folder = folder.resolve()
    name = folder.name
    _check(name, devices, host, home := home or f"/opt/{name}")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise KflError(f"{folder} already exists and is not empty; choose another name.")
        words = {
            "name": name,
            "package": name.replace("-", "_"),
            "devices": str(devices),
            "last": str(devices - 1),
            "host": host,
            "home": home,
            "version": __version__,
            "torch": TORCH,
            **_devices_in_compose(name, home, min(devices, TRIED)),
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_app(folder / "app", name, f"{words['package']}.device:device")
        _copy(files("kfl_fleet.project") / "template", folder, words)
        write_atomic(folder / "watch" / "grafana-dashboard.json", (json.dumps(dashboard(), indent=1) + "\n").encode())
    except OSError as problem:
        raise KflError(f"{folder} cannot be written ({problem.strerror or problem}).") from problem
    return Project(folder)


def _copy(source: Traversable, target: Path, words: dict[str, str]) -> None:
    """Copy a tree with its words filled in; `.in` at the end of a name is for our own tools and goes away."""
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        name = _fill(entry.name.removesuffix(".in"), words)
        if entry.is_dir():
            _copy(entry, target / name, words)
        else:
            write_atomic(target / name, _fill(entry.read_text(encoding="utf-8"), words).encode())
            if name.endswith(".sh"):
                (target / name).chmod(0o755)


def _devices_in_compose(name: str, home: str, count: int) -> dict[str, str]:
    """The parts of compose.yaml that there is one of for each device."""
    service = """  device-{0}:
    <<: *ours
    command: [device, "{0}"]
    profiles: [devices]
    environment:
      SERVER: proxy:8443
    networks: [fleet]
    depends_on:
      proxy: {{condition: service_healthy}}
    volumes:
      - device-{0}:/var/lib/{1}
      - ./device.toml:{2}/device.toml:ro
    secrets:
      - source: ca.crt
        target: {2}/keys/ca.crt
      - source: device-{0}
        target: {2}/keys/device-{0}
    mem_limit: 1g

"""
    return {
        "composedevices": "".join(service.format(device, name, home) for device in range(count)),
        "composevolumes": "".join(f"  device-{device}:\n" for device in range(count)),
        "composesecrets": "\n".join(f"  device-{d}: {{file: keys/device-{d}}}" for d in range(count)),
    }


def _fill(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@@([a-z]+)@@", lambda found: words[found[1]], text)


def _check(name: str, devices: int, host: str, home: str) -> None:
    package = name.replace("-", "_")
    if not NAME.fullmatch(name) or len(name) > 40:
        raise ConfigError("name", name, "small letters, digits and single hyphens, such as my-fleet")
    taken = importlib.util.find_spec(package)
    if keyword.iskeyword(package) or (taken is not None and taken.origin is not None):
        raise ConfigError("name", name, f"another: {package!r} is already the name of a Python package")
    if not 1 <= devices <= 9999:
        raise ConfigError("devices", devices, "from 1 to 9999")
    if not HOST.fullmatch(host):
        raise ConfigError("host", host, "a name or an address, such as fleet.example.org or 10.0.0.5")
    if not HOME.fullmatch(home):
        raise ConfigError("home", home, "an absolute path of letters, digits, dots and hyphens, such as /opt/my-fleet")
