"""The client app of a plain `flower-supernode`: `kfl_fleet.device.client:app`, which an app of Flower has to name.

`kfl deploy device` does without it: Flower starts a process with PyTorch for every message, and kfl keeps one. A
SuperNode of Flower's can still take part, with the node configuration

    partition-id=3                    the device's number, from 0
    state="/var/lib/kfl"              where its model is kept (default: ~/.kfl/fleet)
    config="/etc/kfl/device.toml"     its own configuration, handed to the device function (default: none)
    device="my_fleet.device:device"   the device function (default: `device` in the app's configuration)
    meter="formula"                   formula, codecarbon, or fake:J
"""

from __future__ import annotations

import logging
import sys

from kfl.core.text import scrub
from kfl_fleet._flower.names import ClientApp, Context, Error, ErrorCode, Message
from kfl_fleet._flower.records import from_record, to_record
from kfl_fleet.device.worker import make_worker
from kfl_fleet.logs import note
from kfl_fleet.messages.frames import pack
from kfl_fleet.messages.protocol import RefusedError, refusal

app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """Answer one message; whatever goes wrong becomes an error reply of one sentence."""
    try:
        try:
            parts = from_record(message.content)
        except RefusedError as problem:
            return Message(to_record(pack(refusal(problem), {})), reply_to=message)
        sys.path.insert(0, "")  # a module in the folder where the device was started
        worker = make_worker(context.node_config, context.run_config)
        return Message(to_record(worker.open(parts)), reply_to=message)
    except Exception as problem:  # a device function may raise anything; the fleet must continue
        note("device_failed", "The device could not answer.", level=logging.ERROR, error=problem)
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


__all__ = ["answer", "app"]
