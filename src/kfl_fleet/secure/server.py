"""The server's side of a sum."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kfl_fleet.secure.cipher import KeyPair, SumError, Vector, check_public, mask
from kfl_fleet.secure.device import LEAST_DEVICES, add_common_mask, own_mask_key
from kfl_fleet.secure.shamir import join, liars
from kfl_fleet.secure.tables import Keys, Revealed

SESSION_BYTES = 16


def threshold_of(share: float, holders: int) -> int:
    """How many of the holders of a secret must be left: a share of them, a majority, and at least three.

    >>> [threshold_of(2 / 3, holders) for holders in (3, 4, 6, 10, 100)]
    [3, 3, 4, 7, 67]
    """
    return max(LEAST_DEVICES, holders // 2 + 1, math.ceil(share * holders - 1e-9))


def ring(devices: Sequence[int], neighbours: int | None) -> dict[int, frozenset[int]]:
    """With whom each device masks: all others, or its nearest on a ring in random order (Bell et al. 2020).

    >>> sorted(len(others) for others in ring(range(7), 4).values())
    [4, 4, 4, 4, 4, 4, 4]
    """
    if neighbours is None or neighbours >= len(devices) - 1:
        return {device: frozenset(devices) - {device} for device in devices}
    order = list(devices)
    secrets.SystemRandom().shuffle(order)
    reach = [offset for offset in range(-(neighbours // 2), neighbours // 2 + 1) if offset]
    return {
        device: frozenset(order[(index + offset) % len(order)] for offset in reach)
        for index, device in enumerate(order)
    }


@dataclass
class ServerSum:
    """One sum: open, route, survivors, total, in this order, each with what arrived from the step before.

    A device that does not answer a step has dropped out; it is not asked again. SumError where too few are left.
    """

    share: float
    """Of the devices that mask together, those that must be left at the end."""
    bits: int
    """Integers are added modulo 2^bits, 32 or 64."""
    length: int
    """Integers of a vector."""
    neighbours: int | None = None
    """With how many others each device masks; None for all."""
    session: bytes = field(default_factory=lambda: secrets.token_bytes(SESSION_BYTES))
    """The name of this sum, which all keys depend on."""
    faults: dict[int, SumError] = field(default_factory=dict)
    """Devices that sent what no honest one sends, and what that was."""

    def open(self, keys: Mapping[int, Keys]) -> dict[int, tuple[dict[int, Keys], int]]:
        """After step 1: for each device the keys of those it masks with, and how many must be left.

        Who sent keys that no device makes, or those of another, is at fault, and is not part of the sum; the others
        would refuse them one by one, and look at fault themselves.
        """
        spelled = Counter(key for own in keys.values() for key in (own.seal, own.mask))
        for device, own in sorted(keys.items()):
            try:
                for key in (own.seal, own.mask):
                    check_public(key)
                    if spelled[key] > 1:
                        raise SumError("A public key of this sum is there twice.")
            except SumError as problem:
                self.faults[device] = problem
        keys = {device: own for device, own in keys.items() if device not in self.faults}
        if len(keys) < LEAST_DEVICES:
            raise SumError(
                f"Only {len(keys)} devices are there, and a sum of fewer than {LEAST_DEVICES} hides nothing."
            )
        self._keys, self._graph = dict(keys), ring(sorted(keys), self.neighbours)
        self._threshold = {d: threshold_of(self.share, len(others) + 1) for d, others in self._graph.items()}
        return {d: ({v: keys[v] for v in sorted(self._graph[d])}, self._threshold[d]) for d in sorted(keys)}

    def route(self, boxes: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """After step 2: for each device that shared, the boxes that the others sealed for it."""
        self._shared = {d for d, own in boxes.items() if d in self._keys and set(own) == self._graph[d]}
        self._check(self._shared, "shared their keys")
        return {d: {v: boxes[v][d] for v in sorted(self._graph[d] & self._shared)} for d in sorted(self._shared)}

    def survivors(self, masked: Mapping[int, Vector]) -> dict[int, tuple[int, ...]]:
        """After step 3: for each device whose vector arrived, which of those it masked with are among these too."""
        self._masked = {
            device: vector
            for device, vector in masked.items()
            if device in self._shared and vector.shape == (self.length,) and vector.dtype.itemsize * 8 == self.bits
        }
        left = set(self._masked)
        self._check(left, "sent their vectors")
        return {device: tuple(sorted((self._graph[device] & left) | {device})) for device in sorted(left)}

    def total(self, revealed: Mapping[int, Revealed], *, doubtful: bool = False) -> Vector:
        """After step 4: Σ x over the devices whose vector arrived, modulo 2^bits.

        In doubt, who gave a share that does not fit the others' is at fault, and its shares are left out where enough
        are left. That takes longer than the sum.
        """
        self._doubtful = doubtful
        left, given = set(self._masked), {d: own for d, own in revealed.items() if d in self._masked}
        self._check(set(given), "revealed their shares")
        total = np.zeros(self.length, dtype=f"<u{self.bits // 8}")
        for device, vector in self._masked.items():
            total += vector
            seed = self._join(device, {d: own.seeds for d, own in given.items()}, "seed")
            total -= mask(own_mask_key(seed, self.session), self.length, self.bits)
        for device in sorted(self._shared - left):
            fits = partial(self._is_key, device)
            pair = KeyPair.of(self._join(device, {d: own.keys for d, own in given.items()}, "key", fits), self.session)
            if pair.public != self._keys[device].mask:
                raise SumError(f"The shares of the key of device {device} are not those of its key.")
            for peer in sorted(self._graph[device] & left):
                # The peer's vector holds this mask, with the sign of the peer.
                add_common_mask(total, pair, device, peer, self._keys[peer].mask, self.session)
        return total

    def _is_key(self, device: int, seed: bytes) -> bool:
        return KeyPair.of(seed, self.session).public == self._keys[device].mask

    def _join(
        self,
        device: int,
        given: Mapping[int, Mapping[int, bytes]],
        what: str,
        fits: Callable[[bytes], bool] | None = None,
    ) -> bytes:
        holders = {*self._graph[device], device} - self.faults.keys()
        shares = {d: own[device] for d, own in given.items() if d in holders and device in own}
        try:
            for liar in liars(shares, self._threshold[device], fits) if self._doubtful else ():
                self.faults[liar] = SumError(f"Its share of the {what} of device {device} is wrong.")
                del shares[liar]
            return join(shares, self._threshold[device])
        except SumError as problem:
            raise SumError(f"The {what} of device {device} cannot be restored: {problem}") from problem

    def _check(self, left: set[int], did: str) -> None:
        """Whether the secrets of each device in the sum can still be restored by those who are left."""
        if len(left) < LEAST_DEVICES:
            raise SumError(f"Only {len(left)} devices {did}, and {LEAST_DEVICES} are needed: no change.")
        for device in sorted(self._shared):
            there, needed = len(left & {*self._graph[device], device}), self._threshold[device]
            if there < needed:
                everyone = len(self._graph[device]) + 1
                raise SumError(f"Only {there} of {everyone} devices {did}, and {needed} are needed: no change.")
