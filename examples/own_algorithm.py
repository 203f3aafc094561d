"""Add an algorithm: one class that says what devices do and send, compared with KFL and with training alone.

    python examples/own_algorithm.py

Devices keep their own bodies and share the head: a chosen one puts the server's head on its body, trains both, and
uploads the head; the server averages heads. The class needs no registration, on the command line neither:

    cd examples && kfl compare --algorithms kfl,local,own_algorithm:SharedHead --seeds 0..2 --devices 20 --rounds 20
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import kfl
from kfl.algorithms import Algorithm, Upload, UploadFormat
from kfl.algorithms.weights import part_of, weights_format, weights_upload

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class SharedHead(Algorithm):
    """One head for all, a body for each."""

    name: ClassVar[str] = "shared-head"

    keep: float = 0.0
    """Part of its own head that a device keeps, from 0 to 1. A field is an option: --algorithm.keep."""

    def server_init(self, engine: Engine, seed: int) -> State:
        """The head that all start from."""
        return part_of(engine.initial(0, seed, common=True), "head.")

    def broadcast(self, server: State) -> Message:
        """The head."""
        return server

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """What the chosen devices do: all of them at once, so that the engine may train them as a batch."""
        from kfl.engine import Supervised

        received = [
            {**state, **{name: self.keep * state[name] + (1 - self.keep) * head for name, head in message.items()}}
            for state in states
        ]
        trained = engine.train(devices, received, Supervised(), self.sgd(), key)
        uploads = [
            weights_upload(device, part_of(state, "head."), engine)
            for device, state in zip(devices, trained, strict=True)
        ]
        return trained, uploads

    def upload_format(self, server: State) -> UploadFormat:
        """Arrays like the server's head, weighed by the samples behind them. From this follow the bits that a round
        takes, which uploads are refused, and that the server's new head is their weighted mean."""
        return weights_format(server)


def main() -> None:
    """The same devices, data and seeds for all algorithms."""
    setting = kfl.Experiment(devices=20, rounds=20, samples_per_device=40, widths=(16, 32), radio="none")
    entries = {
        "kfl": setting,
        "shared-head": replace(setting, algorithm=SharedHead()),
        "half": replace(setting, algorithm=SharedHead(keep=0.5)),
        "local": replace(setting, algorithm=kfl.Local()),
    }
    folder = Path("runs/own-algorithm")
    print(kfl.compare(entries, seeds=range(3), folder=folder))
    print(f"Every run is in {folder}; kfl report {folder} makes a page of them.")


if __name__ == "__main__":
    main()
