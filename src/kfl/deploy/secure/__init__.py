"""Secure sums: the server of a fleet learns the sum of its devices' vectors, and no vector.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure Aggregation for
Privacy-Preserving Machine Learning, CCS 2017, figure 4 in its form for an honest-but-curious server; with `neighbours`
on the sparse graph of Bell, Bonawitz, Gascón, Lepoint, Raykova: Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead, CCS 2020.

    device                                   server
    advertise   two public keys           →  open        hands out the keys of those it masks with
    share       sealed shares of secrets  →  route       hands each box to whom it was sealed for
    mask        x + masks                 →  survivors   says whose vectors arrived
    reveal      one share per device      →  total       Σ x of those whose vectors arrived

Each pair of devices has a mask in common that one adds and the other subtracts, so it vanishes from the sum of both;
where one of them drops out, the others give the server shares of its key. A vector that the server merely believed lost
would then be bare, so each has a mask of its own besides, whose seed is restored from shares where the vector arrived.
Nobody gives up shares of both secrets of one device.

Nothing here knows Flower, PyTorch or files: integers modulo 2^32 or 2^64 in, their sum out. `grid` makes integers of
numbers.
"""

from __future__ import annotations

from kfl.deploy.secure._cipher import SumError, Vector
from kfl.deploy.secure._tables import (
    Keys,
    Revealed,
    boxes_bytes,
    pack_boxes,
    pack_devices,
    pack_keys,
    revealed_bytes,
    traffic,
    unpack_boxes,
    unpack_devices,
    unpack_keys,
)
from kfl.deploy.secure.device import LEAST_DEVICES, DeviceSum
from kfl.deploy.secure.grid import RANGES, Grid, Layout
from kfl.deploy.secure.server import SESSION_BYTES, ServerSum, threshold_of

__all__ = [
    "LEAST_DEVICES",
    "RANGES",
    "SESSION_BYTES",
    "DeviceSum",
    "Grid",
    "Keys",
    "Layout",
    "Revealed",
    "ServerSum",
    "SumError",
    "Vector",
    "boxes_bytes",
    "pack_boxes",
    "pack_devices",
    "pack_keys",
    "revealed_bytes",
    "threshold_of",
    "traffic",
    "unpack_boxes",
    "unpack_devices",
    "unpack_keys",
]
