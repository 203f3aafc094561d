"""A bare Flower app on the same machine: messages of the same size to Flower's own SuperNodes, which send them back.

`benchmarks.fleet_cost --bare` runs it next to a fleet of kfl. SuperLink, TLS, keys and database are the same; nothing
is trained. What it takes is what Flower takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from kfl_fleet._flower.app_folder import program
from kfl_fleet.local.fleet import LocalFleet
from kfl_fleet.local.processes import free_ports

PATIENCE_S = 150.0
SERVER = """
import json, os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    want, rounds, size, out = {devices}, {rounds}, {size}, {out!r}
    while len(list(grid.get_node_ids())) < want:
        time.sleep(0.2)
    for number in range(rounds):
        record = RecordDict({{"x": ConfigRecord({{"frame": os.urandom(size)}})}})
        messages = [Message(record, node, "train", group_id=str(number)) for node in grid.get_node_ids()]
        waiting, began = set(grid.push_messages(messages)), time.monotonic()
        while waiting:
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                with open(out, "a") as file:
                    file.write(json.dumps([number, time.monotonic() - began, reply.has_error()]) + "\\n")
            time.sleep(0.2)
    with open(out, "a") as file:
        file.write("[]\\n")
"""
CLIENT = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(RecordDict(dict(message.content)), reply_to=message)
"""


class BareFleet(LocalFleet):
    """A SuperLink as kfl starts it, with an app and devices that are Flower's alone."""

    def measure(self, rounds: int, size: int) -> list[float]:
        """Seconds from message to answer, of all but the first round, in which Flower sends the app."""
        self._rounds, self._size = rounds, size
        with self:
            return list(self._answers())

    @property
    def _out(self) -> Path:
        return self.folder / "answers.jsonl"

    def prepare(self) -> None:
        """Put the bare app in the place of kfl's."""
        super().prepare()
        told = {"devices": self.config.experiment.devices, "rounds": self._rounds, "size": self._size}
        (self.folder / "app" / "local_fleet" / "server_app.py").write_text(SERVER.format(**told, out=str(self._out)))
        (self.folder / "app" / "local_fleet" / "client_app.py").write_text(CLIENT)

    def start_device(self, device: int, key: Path | None = None, superlink: str | None = None) -> None:
        """Start Flower's SuperNode."""
        (port,) = free_ports(1)
        words = [program("flower-supernode"), "--superlink", self.address, "--root-certificates", str(self.authority)]
        words += ["--auth-supernode-private-key", str(key or self._keys[device])]
        words += ["--host", "127.0.0.1", "--port", str(port), "--node-config", f"partition-id={device}"]
        home = self.device_folder(device)
        home.mkdir(parents=True, exist_ok=True)
        self.processes.start(f"device-{device}", words, folder=home, FLWR_HOME=str(home))

    def _answers(self) -> Iterator[float]:
        end = time.monotonic() + PATIENCE_S
        lines: list[str] = []
        while time.monotonic() < end and "[]" not in lines:
            time.sleep(0.5)
            lines = self._out.read_text().splitlines() if self._out.exists() else []
        for number, seconds, failed in (json.loads(line) for line in lines if line != "[]"):
            if number > 0 and not failed:
                yield float(seconds)
