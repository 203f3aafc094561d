"""Keys, sealed boxes and masks: everything that needs a cipher, all of it from the `cryptography` package.

    agreement   X25519 (RFC 7748), then HKDF with SHA-256 (RFC 5869) over the sum's name, the use and both devices
    seeds       16 bytes; the private key or mask that one stands for follows by HKDF
    boxes       AES-256-GCM; each key seals one box, so that the nonce may be constant
    masks       AES-256 in counter mode as the pseudo-random generator, as in Bonawitz et al. 2017

All of them are made for one sum and live in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import KflError, MissingExtraError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Vector = NDArray[np.unsignedinteger[Any]]
"""Integers modulo 2^32 or 2^64."""

KEY_BYTES = 32
TAG_BYTES = 16
PRIME_25519 = 2**255 - 19
SMALL_ORDER = {
    *(0, 1, PRIME_25519 - 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
}
"""The points of Curve25519 whose order divides 8, by their u (Bernstein, cr.yp.to/ecdh.html)."""
_NONCE = bytes(12)
_COUNTER = bytes(16)


class SumError(KflError):
    """Why a sum cannot go on, in a sentence."""


@dataclass(frozen=True, repr=False)
class KeyPair:
    """An X25519 key pair that lives for one sum."""

    private: X25519PrivateKey
    public: bytes

    @staticmethod
    def new() -> KeyPair:
        """A fresh pair."""
        return _pair(_x25519().generate())

    @staticmethod
    def of(seed: bytes, *context: bytes) -> KeyPair:
        """The pair that follows from a seed."""
        return _pair(_x25519().from_private_bytes(derived(seed, b"private key", *context)))

    def agree(self, other: bytes, *context: bytes) -> bytes:
        """The key that this pair and the public half `other` have in common for one use."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            common = self.private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as problem:  # a point that would make the common key known to everyone
            raise SumError("A public key of this sum is not one that a device can have.") from problem
        return derived(common, *context)


def check_public(key: bytes) -> None:
    """SumError for a public key that no device makes.

    X25519 ignores the top bit and reduces the rest, so that one key has several spellings that differ as bytes; and
    with a point of small order the common key is known to everyone.
    """
    point = int.from_bytes(key, "little")
    if not point < PRIME_25519:
        raise SumError("A public key of this sum is not in the form that a device gives it.")
    if point in SMALL_ORDER:
        raise SumError("A public key of this sum is not one that a device can have.")


def derived(secret: bytes, *context: bytes) -> bytes:
    """A key for one use of a secret."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"".join(len(part).to_bytes(4) + part for part in (b"kfl secure sums 1", *context))
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def _x25519() -> type[X25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as problem:
        raise MissingExtraError("cryptography", "fleet", "A secure sum") from problem
    return X25519PrivateKey


def _pair(key: X25519PrivateKey) -> KeyPair:
    return KeyPair(key, key.public_key().public_bytes_raw())


def seal(key: bytes, text: bytes) -> bytes:
    """A box that only a holder of the key can open or make; a key may seal one box only."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).encrypt(_NONCE, text, None)


def unseal(key: bytes, box: bytes) -> bytes:
    """What is in a box; SumError where it was made with another key or changed on its way."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(_NONCE, box, None)
    except InvalidTag as problem:
        raise SumError("A box was not sealed for this device, or was changed on its way.") from problem


def mask(key: bytes, length: int, bits: int) -> Vector:
    """As many pseudo-random integers of so many bits as are asked for, the same for the same key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES256(key), modes.CTR(_COUNTER)).encryptor()
    return np.frombuffer(stream.update(bytes(length * bits // 8)), dtype=f"<u{bits // 8}")
