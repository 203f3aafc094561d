"""A fleet inside one process: Flower's grid with devices that answer when a message is pushed."""

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kfl.scheduling import SCHEDULERS
from kfl.simulation import Experiment
from kfl.wireless import CellConfig
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet._flower.names import Context, Error, Grid, Message, RecordDict
from kfl_fleet.device.client import answer
from kfl_fleet.project import Project, write_project
from kfl_fleet.retry import Clock
from kfl_fleet.server import app

FIRST_NODE = 1000
MOST_SKIPPED_S = 20_000.0
"""Of a clock that takes no real time."""


class Node:
    def __init__(self, node_id: int, name: str = "") -> None:
        self.node_id, self.name, self.status = node_id, name, "online"


class LoopGrid(Grid):
    """Delivers messages to `kfl_fleet.device.client.answer` in this process. `twist` may change or withhold a reply."""

    def __init__(self, folder: Path, config: ServerConfig) -> None:
        self.folder = folder
        self.online = {FIRST_NODE + d: Node(FIRST_NODE + d) for d in range(config.experiment.devices)}
        self.node_config: dict[int, dict[str, Any]] = {}
        self.twist: Callable[[int, Message, Message], Message | None] = lambda device, asked, reply: reply
        self.answer: Callable[[Message, Context], Message] = answer
        self.replies: dict[str, Message] = {}
        self.asked: list[tuple[int, Message]] = []
        self.away = 0
        self.skipped_s = 0.0
        self.clock = Clock(lambda: time.monotonic() + self.skipped_s, self.skip)
        from flwr.supercore.task_identity import (
            TaskIdentity,  # after kfl_fleet._flower.names, which keeps warnings away
        )

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, 0, 1
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.toml").write_text(config.to_toml())
        (folder / "device.toml").write_text(f'experiment = "{folder / "server.toml"}"\n')

    def skip(self, seconds: float) -> None:
        """Let simulated time pass: all devices answer while a message is pushed."""
        self.skipped_s += seconds
        assert self.skipped_s < MOST_SKIPPED_S, "the fleet waits for something that never comes"

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return Message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.online)

    def get_nodes(self) -> Iterable[Any]:
        self._reach()
        return list(self.online.values())

    def _reach(self) -> None:
        if self.away > 0:
            self.away -= 1
            raise ConnectionError("the SuperLink is away")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._reach()
        ids = []
        for message in messages:
            number = str(len(self.asked))
            message.metadata.__dict__["_message_id"] = number
            node = message.metadata.dst_node_id
            device = node - FIRST_NODE
            self.asked.append((device, message))
            own = {
                "partition-id": device,
                "state": str(self.folder / "devices"),
                "config": str(self.folder / "device.toml"),
                "device": "kfl_fleet.device.simulated:device",
                **self.node_config.get(device, {}),
            }
            if node in self.online:
                context = Context(0, node, own, RecordDict(), {})
                reply = self.twist(device, message, self.answer(message, context))
            else:
                reply = Message(Error(5, "Node Unavailable"), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1
            if reply is not None:
                self.replies[number] = reply
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._reach()
        return [self.replies.pop(number) for number in message_ids if number in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def serve(grid: LoopGrid, config: ServerConfig, folder: Path) -> None:
    """Run a fleet into a folder, by the grid's clock."""
    app.serve(grid, config, folder, grid.clock)


SHORT_WAITS = {"deadline_s": 0.3, "poll_s": 0.01, "join_deadline_s": 0.2, "profile_deadline_s": 0.3}


def installed_project(folder: Path, devices: int = 2, host: str = "fleet.test") -> Project:
    """A project that would be installed where it lies, with the programs of this environment."""
    made = write_project(folder, devices=devices, host=host, home=str(folder))
    (folder / "venv").mkdir()
    (folder / "venv" / "bin").symlink_to(Path(sys.executable).parent)
    return made


def small_experiment(**changes: Any) -> Experiment:
    """Four devices, three architectures; energy decides, so that shares differ and devices sit out."""
    start = Experiment(
        devices=4,
        rounds=3,
        widths=(128, 192, 256),
        scheduler=SCHEDULERS["lyapunov"](v=0.002),
        radio=CellConfig(bandwidth_hz=1e6),
    )
    return replace(start, **changes)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An installed project of two devices."""
    return installed_project(tmp_path / "my-fleet")


@pytest.fixture
def small() -> Callable[..., Experiment]:
    return small_experiment


@pytest.fixture
def loop(tmp_path: Path) -> Callable[..., tuple[LoopGrid, ServerConfig]]:
    """A grid and a configuration whose waits are short."""

    def make(experiment: Experiment | None = None, **fleet: Any) -> tuple[LoopGrid, ServerConfig]:
        config = ServerConfig(experiment or small_experiment(), FleetSettings(**{**SHORT_WAITS, **fleet}))
        return LoopGrid(tmp_path / "fleet", config), config

    return make


@pytest.fixture
def serve_fleet() -> Callable[[LoopGrid, ServerConfig], Path]:
    """Run a fleet to its end; the run folder."""

    def run(grid: LoopGrid, config: ServerConfig) -> Path:
        folder = grid.folder / "run"
        serve(grid, config, folder)
        return folder

    return run
