"""What a secure sum costs next to a plain upload: bytes and milliseconds of a device and of the server.

    python -m benchmarks.secure_sums --out docs/results/secure-sums.txt

The protocol alone, in one process and one thread: no network, no Flower, no training. Bytes are those of the content
that travels, without the envelopes. Times are of the processor; a device's are medians over a few devices. Lost devices
shared their keys and then vanished, which is what costs the server most. Sums are checked against plain ones where
every device masks a whole vector (up to 100 devices; above, all but the timed ones send random numbers, which cost the
server the same). All of it takes about six minutes; `--devices 10 100` one.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.machine import machine
from kfl_fleet.secure import (
    DeviceSum,
    Keys,
    Layout,
    Revealed,
    ServerSum,
    Vector,
    pack_boxes,
    pack_devices,
    pack_keys,
)

T = TypeVar("T")
LOST = 0.3
TIMED = 5
"""Devices whose times are taken."""
CHECKED = 100
"""Up to so many devices, every one masks a whole vector and the sum is checked."""


@dataclass(frozen=True)
class Load:
    """What devices upload."""

    name: str
    values: int
    plain_bytes: int


LOADS = (
    Load("knowledge, 10 classes × 64", 640 + 10, 640 * 4 + 10 * 8),
    Load("stem of 2,872 values", 2_872 + 1, 2_872 // 2 + 4 * 4 + 8),  # four bits each, a scale for each array
    Load("weights of FedAvg", 550_346 + 1, 550_346 * 4 + 8),
)


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """A result, and how many milliseconds of the processor it took: other programs do not count."""
    began = time.process_time()
    found = call()
    return found, 1e3 * (time.process_time() - began)


class Opened:
    """So many devices that have shared their keys; every measurement starts from here."""

    def __init__(self, devices: int, neighbours: int | None) -> None:
        self.devices, self.neighbours = devices, neighbours
        share = 2 / 3 if neighbours is None else 0.5
        self.server = ServerSum(share, 32, 0, neighbours)
        self.sums = [DeviceSum(self.server.session, number) for number in range(devices)]
        keys: dict[int, Keys] = {}
        times = []
        for number, own in enumerate(self.sums):
            keys[number], spent = timed(own.advertise)
            times.append(spent)
        opened, self.server_ms = timed(lambda: self.server.open(keys))
        boxes = {}
        for number, own in enumerate(self.sums):
            boxes[number], spent = timed(lambda own=own, number=number: own.share(*opened[number]))  # type: ignore[misc]  # mypy cannot type a lambda's default
            times[number] += spent
        self.routed, spent = timed(lambda: self.server.route(boxes))
        self.server_ms += spent
        self.share_ms = statistics.median(times)
        peers, _ = opened[0]
        self.up = len(keys[0].pack()) + len(pack_boxes(boxes[0]))
        self.down = len(pack_keys(peers)) + len(pack_boxes(self.routed[0]))

    def play(self, load: Load, lost: float) -> dict[str, float]:
        """Mask, reveal and add up, with a share of the devices lost; costs of one device and of the server."""
        layout = Layout({"values": (load.values,)}, {"values": 64.0 * 1024}, self.devices, 32)
        server, draw = copy.copy(self.server), np.random.default_rng(0)
        server.length = layout.length
        gone = set(draw.choice(self.devices, round(lost * self.devices), replace=False).tolist())
        left = [number for number in range(self.devices) if number not in gone]
        full = self.devices <= CHECKED
        masked: dict[int, Vector] = {}
        times, expected = [], np.zeros(load.values)
        sums = {number: copy.copy(self.sums[number]) for number in left}
        for own in sums.values():
            own._held = {}  # a copy shares what it holds with its original
        noise = draw.integers(0, 2**32 - 1, layout.length, dtype=np.uint32)
        for place, number in enumerate(left):
            if full or place < TIMED:
                values = draw.normal(size=load.values)
                expected += values
                masked[number], spent = timed(
                    lambda own=sums[number], number=number, values=values: own.mask(  # type: ignore[misc]  # as above
                        self.routed[number], layout.encode({"values": values})
                    )
                )
                times.append(spent)
            else:
                sums[number].mask(self.routed[number], np.zeros(1, dtype=np.uint32))
                masked[number] = noise
        survivors, server_ms = timed(lambda: server.survivors(masked))
        reveals: dict[int, Revealed] = {}
        reveal_times = []
        for number, who in survivors.items():
            reveals[number], spent = timed(lambda own=sums[number], who=who: own.reveal(who))  # type: ignore[misc]  # as above
            reveal_times.append(spent)
        total, spent = timed(lambda: server.total(reveals))
        if full:
            found, clipped = layout.decode(total)
            error = float(np.abs(found["values"] - expected).max())
            assert clipped == 0 and error <= layout.grid("values").error, error
        first = left[0]
        return {
            "up": self.up + masked[first].nbytes + len(reveals[first].pack()),
            "down": self.down + len(pack_devices(survivors[first])),
            "device_ms": self.share_ms + statistics.median(times) + statistics.median(reveal_times),
            "server_ms": self.server_ms + server_ms + spent,
        }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--neighbors", type=int, default=100, help="a second line for fleets of more than so many")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    head = f"{'upload':<28}{'devices':>8}{'masks with':>11}{'plain up':>12}{'up':>12}{'down':>10}"
    head += f"{'device ms':>11}{'server ms':>11}{'30 % lost':>11}"
    lines = ["python -m benchmarks.secure_sums; " + machine(), "", head]
    print("\n".join(lines), flush=True)
    for devices in given.devices:
        graphs = [None] if devices <= given.neighbours + 1 else [None, given.neighbours]
        for neighbours in graphs:
            opened = Opened(devices, neighbours)
            for load in LOADS:
                whole, some = opened.play(load, 0.0), opened.play(load, LOST)
                others = devices - 1 if neighbours is None else neighbours
                line = f"{load.name:<28}{devices:>8}{others:>11}{load.plain_bytes:>12,}{whole['up']:>12,.0f}"
                line += f"{whole['down']:>10,.0f}{whole['device_ms']:>11,.1f}{whole['server_ms']:>11,.0f}"
                lines.append(f"{line}{some['server_ms']:>11,.0f}")
                print(lines[-1], flush=True)
    lines += ["", "Up and down: bytes of one device in a round, next to the broadcast. Server ms: the whole sum."]
    print("\n".join(lines[-2:]))
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
