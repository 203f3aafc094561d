"""The client app that Flower runs on a device: `kfl.deploy.client:app`.

What it needs comes from the device's own node configuration, `flower-supernode --node-config "..."`:

    partition-id=3                    the device's number, from 0
    state="/var/lib/kfl"              where its model is kept (default: ~/.kfl/fleet)
    config="/etc/kfl/device.toml"     its own configuration, handed to the device function (default: none)
    device="my_fleet.device:device"   the device function (default: `device` in the app's configuration)
    meter="formula"                   formula, rapl, codecarbon, or fake:J

An error on the device is logged there in full and told to the server in one scrubbed sentence.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfl.core.errors import ConfigError
from kfl.core.parse import read_toml
from kfl.core.text import scrub
from kfl.deploy.device import make_setup
from kfl.deploy.flower import ClientApp, Context, Error, ErrorCode, Message
from kfl.deploy.meters import make_meter
from kfl.deploy.protocol import PROTOCOL_VERSION, RefusedError, check_version, from_record, to_record, to_tensors
from kfl.deploy.worker import Worker, whole_or

log = logging.getLogger("kfl")
app = ClientApp()


def make_worker(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Worker:
    """The device that a node's configuration describes."""
    partition = whole_or(node_config, "partition-id")
    if partition < 0:
        raise ConfigError("partition-id", node_config.get("partition-id"), "the device's number, from 0")
    address = str(node_config.get("device") or run_config.get("device") or "")
    file = node_config.get("config")
    config = read_toml(Path(str(file))) if file else {}
    sys.path.insert(0, "")  # a module in the folder where the device was started
    setup = make_setup(address, partition, config)
    folder = Path(str(node_config.get("state") or Path.home() / ".kfl" / "fleet"))
    return Worker(partition, setup, folder, make_meter(str(node_config.get("meter") or "formula")))


def answer(message: Message, context: Context) -> Message:
    """Answer one message; whatever goes wrong becomes an error reply of one sentence."""
    try:
        try:
            values, raw = from_record(message.content)
            check_version(values)  # before any work: the rest of the message may mean something else
            arrays = to_tensors(raw)
        except RefusedError as problem:
            refusal = {"protocol": PROTOCOL_VERSION, "kind": "refused", "status": "refused", "reason": str(problem)}
            return Message(to_record(refusal, {}), reply_to=message)
        worker = make_worker(context.node_config, context.run_config)
        reply, upload = worker.answer(values, arrays)
        return Message(to_record(reply, upload), reply_to=message)
    except Exception as problem:  # a device function may raise anything; the fleet must continue
        log.exception("The device could not answer.")
        reason = f"{type(problem).__name__}: {scrub(problem)}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say what this device has."""
    return answer(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take part in a round."""
    return answer(message, context)


__all__ = ["app", "make_worker"]
