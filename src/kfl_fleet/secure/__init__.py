"""Secure sums: the server of a fleet learns the sum of its devices' vectors, and no single vector.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: *Practical Secure Aggregation for
Privacy-Preserving Machine Learning*, CCS 2017, figure 4 in its honest-but-curious form; with `neighbours`, on the
sparse graph of Bell, Bonawitz, Gascón, Lepoint, Raykova: *Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead*, CCS 2020.

    device                                   server
    advertise   two public keys           →  open        hands out the keys of those it masks with
    share       sealed shares of secrets  →  route       forwards each box to the device it was sealed for
    mask        x + masks                 →  survivors   says whose vectors arrived
    reveal      one share per device      →  total       Σ x of those whose vectors arrived

**Masks.** Device i sends x_i + PRG(b_i) + Σ_j ±PRG(s_ij) modulo 2^32 or 2^64. Of each pair, one device adds PRG(s_ij)
and the other subtracts it, so it cancels in the sum of both. If j drops out, the others give the server shares of j's
key, from which it computes s_ij. A vector that the server only believed lost would then be bare, which is why each has
a mask of its own, PRG(b_i); its seed is restored from shares if the vector arrived. No device reveals shares of both
secrets of one device, and fewer shares than the threshold t reveal nothing, so t − 1 devices that tell the server all
they know learn nothing about the others beyond their sum.

**Threshold.** t is a majority of the devices that advertised, and at least three. A round survives as long as t devices
are left after each step. With neighbors, both counts are among the neighbors of each device, a ring drawn anew in
every round; `studies/fleet/secure_neighbours.py` computes the odds that a round fails or a device is exposed.

**Numbers.** Each value times its weight is clipped to ±R·D and rounded to a multiple of a step, the smallest power of
two for which n devices cannot overflow b bits:

    step < 2 n D R / (2^(b-1) − 2 n),     |sum − exact sum| ≤ n · step / 2

D is the largest number of samples of a device, rounded up to a power of two, and R is `secure_range`. Ten devices of up
to 1,000 samples with R = 64 and 32 bits have a step of 2^−11: a mean over 5,000 samples of a class is off by at most
5 · 10^−7. Counts are exact. How many values were clipped is part of the sum. Quantized uploads gain nothing, because
devices' grids differ: a masked value takes all its bits.

**Checks.** Two more entries of a vector are the sums of its others times random numbers that follow from the session.
They add up as all do, so a mask that is left in a sum (a changed share, key or vector) shows, but for one chance in
2^64. A key has one spelling: X25519 ignores a bit. Shares that are to spare say whose share is wrong (`shamir.liars`).

**Primitives.** X25519 with HKDF-SHA-256 for keys, AES-256-GCM for boxes, AES-256 in counter mode for masks, all from
the package cryptography; Shamir's sharing over the field of 2^128 + 51 (`_shamir`). Every key, seed and share belongs
to one round and lives in the memory of a device's worker. A device that restarts in mid-round has dropped out.

**Not covered: a server that lies.** It could hand out keys of its own in place of other devices', or invent devices.
The paper counters this with signed keys and one more exchange. Here that would not help, because the server also sends
devices the app that they run. What a device refuses in any case: fewer than three devices, a threshold that is not a
majority, a second vector under the same masks, shares of both secrets of one device, and another set of survivors after
it has answered. Nor can sums protect against a device that lies about its vector, checks included, since the server
sees no single one.

**Why not Flower's SecAgg+.** In Flower 1.41 it exists only for the legacy interface (`SecAggPlusWorkflow` needs a
`LegacyContext` and a `Strategy`), and its masks are not secret: `pseudo_rand_gen` folds a key of 32 bytes into 32 bits
and seeds `numpy.random.RandomState`, whose 2^32 seeds can all be tried (flwrlabs/flower#7522).

Nothing here knows Flower, PyTorch or files: integers in, their sum out. `grid` turns numbers into integers.
"""

from __future__ import annotations

from kfl_fleet.secure.cipher import SumError, Vector
from kfl_fleet.secure.device import LEAST_DEVICES, DeviceSum
from kfl_fleet.secure.grid import RANGES, Grid, Layout
from kfl_fleet.secure.server import SESSION_BYTES, ServerSum, threshold_of
from kfl_fleet.secure.tables import (
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
