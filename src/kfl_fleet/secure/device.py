"""A device's side of a sum."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

import numpy as np

from kfl_fleet.secure.cipher import KeyPair, SumError, Vector, check_public, derived, mask, seal, unseal
from kfl_fleet.secure.shamir import SECRET_BYTES, SHARE_BYTES, split
from kfl_fleet.secure.tables import Keys, Revealed

LEAST_DEVICES = 3
"""No sum is made of fewer: of two terms, one reveals the other."""


class DeviceSum:
    """One device in one sum: advertise, share, mask, reveal, each step once and in this order.

    Whatever the server asks for, a device never gives up its vector without masks, never shares of both secrets of
    one device, and nothing where fewer than `LEAST_DEVICES`, or no majority, would take part. All secrets are in the
    memory of this object and nowhere else.
    """

    def __init__(self, session: bytes, device: int) -> None:
        self.session, self.device = session, device
        self._done = "new"
        self._seal, self._seed, self._key_seed = KeyPair.new(), *(secrets.token_bytes(SECRET_BYTES) for _ in range(2))
        self._mask = KeyPair.of(self._key_seed, session)
        self._peers: dict[int, Keys] = {}
        self._threshold = 0
        self._own: tuple[bytes, bytes] = (b"", b"")
        self._held: dict[int, tuple[bytes, bytes]] = {}
        """For each device that masks with this one: shares of its seed and of its mask key."""

    def advertise(self) -> Keys:
        """Step 1: the public keys of this sum."""
        self._step("new", "advertised")
        return Keys(self._seal.public, self._mask.public)

    def share(self, peers: Mapping[int, Keys], threshold: int) -> dict[int, bytes]:
        """Step 2: shares of this device's two secrets, sealed for each of the devices it masks with."""
        self._step("advertised", "shared")
        holders = sorted({*peers, self.device})
        keys = [key for own in peers.values() for key in (own.seal, own.mask)]
        for key in keys:
            check_public(key)
        if self.device in peers or len({*keys, self._seal.public, self._mask.public}) < len(keys) + 2:
            raise SumError("Two of the keys of this sum are the same.")
        if not max(LEAST_DEVICES, len(holders) // 2 + 1) <= threshold <= len(holders):
            least = max(LEAST_DEVICES, len(holders) // 2 + 1)
            raise SumError(
                f"The threshold of this sum is {threshold}, but must be from {least} to {max(least, len(holders))}."
            )
        self._peers, self._threshold = dict(peers), threshold
        seeds, keys_ = split(self._seed, threshold, holders), split(self._key_seed, threshold, holders)
        self._own = seeds[self.device], keys_[self.device]
        return {peer: seal(self._box_key(self.device, peer), seeds[peer] + keys_[peer]) for peer in sorted(peers)}

    def mask(self, boxes: Mapping[int, bytes], vector: Vector) -> Vector:
        """Step 3: the vector under the device's own mask and one in common with each device that shared.

        y = x + PRG(b) + Σ_{v above this device} PRG(s_uv) − Σ_{v below it} PRG(s_uv), modulo 2^bits.
        """
        self._step("shared", "masked")
        if not set(boxes) <= set(self._peers):
            raise SumError("A box comes from a device that is not part of this sum.")
        if len(boxes) + 1 < self._threshold:
            raise SumError(f"Only {len(boxes) + 1} devices shared their keys, and {self._threshold} are needed.")
        for peer, box in boxes.items():
            try:
                opened = unseal(self._box_key(peer, self.device), box)
            except SumError as problem:
                raise SumError(f"{str(problem)[:-1]}: that of device {peer}.") from problem
            self._held[peer] = opened[:SHARE_BYTES], opened[SHARE_BYTES:]
        self._held[self.device] = self._own
        bits = 8 * vector.dtype.itemsize
        masked = vector + mask(own_mask_key(self._seed, self.session), len(vector), bits)
        for peer in boxes:
            add_common_mask(masked, self._mask, self.device, peer, self._peers[peer].mask, self.session)
        return masked

    def reveal(self, survivors: Collection[int]) -> Revealed:
        """Step 4: shares of the seed of each device whose vector arrived, of the key of each whose vector did not."""
        self._step("masked", "revealed")
        arrived = set(survivors)
        if not arrived <= set(self._held) or self.device not in arrived:
            raise SumError("The survivors of this sum are not devices that masked for it.")
        if len(arrived) < self._threshold:
            raise SumError(f"Only {len(arrived)} devices are left, and {self._threshold} are needed.")
        held, self._held = self._held, {}
        return Revealed(
            {device: seed for device, (seed, _) in held.items() if device in arrived},
            {device: key for device, (_, key) in held.items() if device not in arrived},
        )

    def _step(self, before: str, after: str) -> None:
        """Each step once: a second vector under the same masks, or other survivors, would undo the protection."""
        if self._done != before:
            raise SumError(f"This device has {self._done} in this sum, so it cannot take the step to {after}.")
        self._done = after

    def _box_key(self, sender: int, receiver: int) -> bytes:
        peer = receiver if sender == self.device else sender
        return self._seal.agree(self._peers[peer].seal, b"box", self.session, *_numbers(sender, receiver))


def own_mask_key(seed: bytes, session: bytes) -> bytes:
    """The generator's key of the mask that a device has for itself."""
    return derived(seed, b"own mask", session)


def add_common_mask(vector: Vector, pair: KeyPair, device: int, peer: int, peer_key: bytes, session: bytes) -> None:
    """Add, in place, the mask that a device has in common with a peer; the lower number adds, the higher subtracts."""
    low, high = min(device, peer), max(device, peer)
    key = pair.agree(peer_key, b"mask", session, *_numbers(low, high))
    common = mask(key, len(vector), 8 * vector.dtype.itemsize)
    if device == low:
        np.add(vector, common, out=vector)
    else:
        np.subtract(vector, common, out=vector)


def _numbers(*devices: int) -> tuple[bytes, ...]:
    return tuple(device.to_bytes(4) for device in devices)
