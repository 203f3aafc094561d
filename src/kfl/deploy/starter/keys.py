"""Certificates and keys of a project, made where they are missing.

They come from `kfl.deploy.certificates` and not from a shell script around openssl: its options and defaults differ
between versions and systems, and files that a fleet depends on should come from code that is tested with it.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kfl.core.errors import ConfigError, KflError
from kfl.core.files import write_atomic
from kfl.deploy.app_folder import write_connection
from kfl.deploy.certificates import Pair, make_authority, make_device_key, make_server_certificate
from kfl.deploy.starter.project import CONNECTION, Project

HERE = ("localhost", "127.0.0.1")
"""The SuperLink is reached under these names on its own machine, by the proxy and the server app."""


def make_missing(project: Project, hosts: Sequence[str] = ()) -> list[Path]:
    """Make what is not there yet: authority, server certificate, one key per device, and a secret of the server's own.

    `hosts` are the names and addresses by which devices reach the server; by default the one in device.env. Returns
    the files that were made.
    """
    keys, made = project.keys, []
    try:
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Pair(keys / "ca.crt", keys / "ca.key")
        if not authority.public.exists():
            made += _files(make_authority(keys, project.folder.name))
        if not (keys / "server.crt").exists():
            made += _files(_server(keys, authority, hosts or server_names(project)))
        for device in range(project.config.experiment.devices):
            if not (keys / f"device-{device}.pub").exists():
                made += _files(make_device_key(keys, device))
        secret = keys / "superexec.secret"
        if not secret.exists():
            write_atomic(secret, secrets.token_hex(32).encode())
            secret.chmod(0o600)
            made.append(secret)
        write_connection(project.flower_home, CONNECTION, project.address, authority.public)
    except OSError as problem:
        raise KflError(f"The keys in {keys} cannot be written ({problem.strerror or problem}).") from problem
    return made


def renew_server(project: Project, hosts: Sequence[str] = ()) -> Path:
    """A new server certificate of the same authority, for more names or because the old one ends; devices notice
    nothing. Restart the SuperLink and reload the proxy afterwards."""
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
    """The name devices know the server by, from SERVER in device.env."""
    path = project.folder / "device.env"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, _, value = line.strip().partition("=")
        if name == "SERVER" and value:
            return [value.rpartition(":")[0].strip("[]") or value]
    return []


def _server(folder: Path, authority: Pair, hosts: Sequence[str]) -> Pair:
    return make_server_certificate(folder, authority, list(dict.fromkeys((*hosts, *HERE))))


def _files(pair: Pair) -> list[Path]:
    return [pair.public, pair.private]
