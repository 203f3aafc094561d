"""A whole fleet on this machine, on loopback: TLS, authenticated devices, a database, processes of their own.

    <folder>/
      server.toml        the server's configuration
      run/               the server's run folder
      app/               the Flower app
      keys/              authority, server certificate, device keys
      devices/device-0/  what device 0 keeps: its model, its configuration, the app
      flower/            Flower's own home (FLWR_HOME) for the server's side
      logs/              what every process printed
      superlink.db       Flower's database

All of it is its owner's alone, and so is what listens on 127.0.0.1: another user of the machine is refused.

Nothing outside the folder is touched, ports are free ones, and when it ends all its processes have stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kfl.core.config import dump_toml
from kfl.core.errors import KflError
from kfl.core.files import write_atomic
from kfl.runfolder import RoundLog, RunReader, is_finished, is_held
from kfl_fleet._flower.app_folder import flower_environment, program, write_app
from kfl_fleet._flower.control import Control, UnreachableError
from kfl_fleet._flower.database import DATABASE, Janitor
from kfl_fleet.device.node import NodeOptions, command
from kfl_fleet.local.processes import ProcessGroup, free_ports, listening
from kfl_fleet.local.supervisor import Supervisor
from kfl_fleet.logs import note, warn
from kfl_fleet.private import narrow, private_folder
from kfl_fleet.project.certificates import Pair
from kfl_fleet.project.project import Project, make_missing
from kfl_fleet.retry import Retry
from kfl_fleet.settings import ServerConfig

PRIVATE = ("keys", "flower", "logs", "devices", "run")
"""Folders in which only their owner has any business."""
START_S = 60.0
"""How long the SuperLink may take to answer."""
SUBMIT = Retry(1.0, factor=2.0, most_s=10.0)
RESTART_S = 5.0
"""Between two attempts to start a program again."""
LOOK_S = 0.2
SILENT_S = 20.0
"""A server that has not held its run folder for this long is dead, and its run is restarted."""


@dataclass
class LocalFleet:
    """A fleet of processes on this machine. Use it as a context manager: it ends with the block."""

    folder: Path
    config: ServerConfig
    device: str = "kfl_fleet.device.simulated:device"
    """The device function of all devices."""
    device_config: Mapping[str, Any] | None = None
    """Contents of every device's own TOML file; by default the path of the server's."""
    device_extra: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """More for the files of single devices."""
    node_options: Mapping[str, Any] = field(default_factory=dict)
    """More options for every device's node, such as meter or poll_s."""
    python_path: Sequence[Path] = ()
    """Where devices find modules of yours."""

    def __post_init__(self) -> None:
        self.config.validate()
        if "flwr" not in sys.modules:
            import kfl_fleet._flower.names  # noqa: F401  # says in a sentence if it is missing
        self.folder = self.folder.resolve()
        paths = [*map(str, self.python_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**flower_environment(self.folder / "flower"), "OMP_NUM_THREADS": "1"}
        # Flower's programs start one another by name.
        environment["PATH"] = f"{Path(program('flwr')).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.processes = ProcessGroup(self.folder / "logs", environment)
        (self.port,) = free_ports(1)
        self.run_folder = self.folder / "run"
        self.runs = 0
        self._restarted: dict[str, float] = {}
        self._away: set[int] = set()
        """Devices whose process has ended, and of which no round has heard since."""
        self._janitor = Janitor(self.folder / DATABASE)
        self._keys = {d: self.folder / "keys" / f"device-{d}" for d in range(self.config.experiment.devices)}

    def __enter__(self) -> LocalFleet:
        try:
            self.prepare()
            self.start_superlink()
            self.start_superexec()
            self.register(range(self.config.experiment.devices))
            for device in range(self.config.experiment.devices):
                self.start_device(device)
            self._submit_patiently()
        except BaseException:
            self.processes.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.end()

    def prepare(self) -> None:
        """Write everything a fleet needs before its first process; what is there already is kept."""
        if not self.folder.exists():
            private_folder(self.folder)
        for name in PRIVATE:  # of an earlier version or under another umask they may be open to others
            narrow(self.folder / name)
        write_atomic(self.folder / "server.toml", self.config.to_toml().encode())
        write_app(self.folder / "app", "local-fleet", self.device, self.folder / "server.toml", self.run_folder)
        make_missing(Project(self.folder), address=self.address)
        for device in range(self.config.experiment.devices):
            home = self.device_folder(device)
            private_folder(home.parent)
            private_folder(home)
            own = self.device_config or {"experiment": str(self.folder / "server.toml")}
            table = {**own, **self.device_extra.get(device, {})}
            write_atomic(home / "device.toml", dump_toml(table).encode())

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificate devices trust."""
        return self.folder / "keys" / "ca.crt"

    def device_folder(self, device: int) -> Path:
        """Where a device keeps what is its own."""
        return self.folder / "devices" / f"device-{device}"

    def start_superlink(self, wait: bool = True) -> None:
        """Start the SuperLink, and wait until it answers where that is wanted."""
        keys, project = self.folder / "keys", Project(self.folder)
        self.processes.start(
            "superlink",
            [
                *(sys.executable, "-m", "kfl_fleet._flower.control_auth", "superlink", "--control-secret"),
                str(project.control_secret),
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("--ssl-ca-certfile", str(keys / "ca.crt")),
                *("--ssl-certfile", str(keys / "server.crt"), "--ssl-keyfile", str(keys / "server.key")),
                "--enable-supernode-auth",
                *("--isolation", "process", "--database", str(self.folder / DATABASE)),
                *("--superexec-auth-secret-file", str(project.superexec_secret)),
            ],
        )
        end = time.monotonic() + START_S
        while wait and not listening(self.port):
            if time.monotonic() > end or not self.processes.alive("superlink"):
                raise KflError(f"The SuperLink did not start; see {self.folder / 'logs' / 'superlink.log'}.")
            time.sleep(0.1)

    def start_superexec(self) -> None:
        """Start the process that runs server apps."""
        command = [
            sys.executable,
            "-m",
            "kfl_fleet._flower.control_auth",
            "superexec",
            "--runtime-api-address",
            self.address,
        ]
        command += ["--root-certificates", str(self.authority)]
        command += ["--superexec-auth-secret-file", str(Project(self.folder).superexec_secret)]
        self.processes.start("superexec", command)

    def register(self, devices: Sequence[int], keys: Mapping[int, Pair] | None = None) -> None:
        """Tell the SuperLink the public keys of devices, each under its name."""
        project = Project(self.folder)
        self.control.register({d: keys[d].public if keys else project.public_key(d) for d in devices})

    @property
    def control(self) -> Control:
        """The control interface of this fleet's SuperLink."""
        project = Project(self.folder)
        return Control(project.flower_home, self.address, project.keys, self.run_folder, self.processes.environment)

    def start_device(self, device: int, key: Path | None = None, superlink: str | None = None) -> None:
        """Start a device, or start it again. A key that is given is its key from now on."""
        self._keys[device] = key or self._keys[device]
        home = self.device_folder(device)
        options = {
            "superlink": superlink or self.address,
            "root_certificates": str(self.authority),
            "key": str(self._keys[device]),
            "number": device,
            "state": str(home / "state"),
            "config": str(home / "device.toml"),
        }
        self.processes.start(f"device-{device}", command(NodeOptions(**{**options, **self.node_options})), folder=home)

    def submit(self) -> None:
        """Start a Flower run: the server app, which continues where the run folder ends."""
        self.runs += 1
        self.control.submit(self.folder / "app")

    def _submit_patiently(self) -> None:
        """The same, for as long as a SuperLink may take to answer."""
        for _ in SUBMIT.pauses(time.monotonic() + START_S):
            try:
                return self.submit()
            except UnreachableError as problem:
                last = problem
                warn("superlink_unreachable", f"{problem} Trying again.")
        raise last

    @property
    def finished(self) -> bool:
        """Whether the server has finished the run."""
        return is_finished(self.run_folder)

    @property
    def serving(self) -> bool:
        """Whether a server app holds the run folder."""
        return is_held(self.run_folder)

    def rounds(self, patience_s: float = 600.0, restart: bool = True) -> Iterator[RoundLog]:
        """The rounds as they are finished, until the last. A server that died is restarted, if wanted.

        KflError if nothing happens for `patience_s` seconds.
        """
        keeper = Supervisor(
            RunReader(self.run_folder), self.control, self.submit, self.tend, SILENT_S, LOOK_S, patience_s
        )
        for entry in keeper.rounds(submitted=True, restart=restart):
            for device in sorted(self._away & set(entry.used)):
                self._away.discard(device)
                note("device_back", f"Device {device} is back.", device=device)
            yield entry

    def tend(self) -> None:
        """Start again what has died, each program at most every few seconds, and look after Flower's database.

        A device that comes back is refused as long as the server still thinks it is there, for up to a minute.
        """
        starts: dict[str, Callable[[], None]] = {
            "superlink": partial(self.start_superlink, wait=False),
            "superexec": self.start_superexec,
        }
        starts |= {f"device-{d}": partial(self.start_device, d) for d in range(self.config.experiment.devices)}
        for name, start in starts.items():
            if not self.processes.alive(name) and time.monotonic() - self._restarted.get(name, -RESTART_S) >= RESTART_S:
                self._restarted[name] = time.monotonic()
                self._tell_end(name)
                try:
                    start()
                except OSError as problem:  # a full disk, no process left: another time
                    warn("not_started", f"{name} could not be started ({problem.strerror or problem}).")
        self._janitor.tend()

    def _tell_end(self, name: str) -> None:
        """Say that a device's process has ended, since the next round may be a minute away."""
        if name.startswith("device-"):
            device = int(name.removeprefix("device-"))
            self._away.add(device)
            sentence = f"Device {device} has ended and is started again; the server admits it after up to a minute."
            warn("device_ended", sentence, device=device)

    def history(self) -> list[RoundLog]:
        """The rounds that are done."""
        return RunReader(self.run_folder).whole_rounds()
