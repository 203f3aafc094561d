"""Shamir's secret sharing of 16-byte secrets over a prime field.

Shamir: How to Share a Secret, Communications of the ACM 22(11), 1979. A secret is f(0) of a random polynomial of degree
t − 1; holder h has f(h + 1). Any t points give f(0) by Lagrange's formula, and t − 1 points say nothing about it: for
every value of f(0) there is exactly one polynomial through them.

The field is that of the smallest prime above 2^128, so that every 16 bytes are an element of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from kfl_fleet.secure.cipher import SumError

PRIME = 2**128 + 51
SECRET_BYTES = 16
SHARE_BYTES = 17
"""An element of the field may need 129 bits."""


def split(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, bytes]:
    """A share for each holder, of which any `threshold` give the secret back.

    >>> shares = split(bytes(range(16)), 2, [0, 4, 7])
    >>> join({4: shares[4], 0: shares[0]}, 2) == join({7: shares[7], 4: shares[4]}, 2) == bytes(range(16))
    True
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"A secret has {len(secret)} bytes, not {SECRET_BYTES}.")
    if not 1 <= threshold <= len(set(holders)) or len(set(holders)) < len(holders) or min(holders) < 0:
        raise ValueError(f"{len(holders)} holders, {len(set(holders))} of them different, cannot share by {threshold}.")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]  # of the highest power first
    shares = {}
    for holder in holders:
        value, x = 0, holder + 1
        for coefficient in coefficients:
            value = (value + coefficient) * x % PRIME
        shares[holder] = ((value + int.from_bytes(secret)) % PRIME).to_bytes(SHARE_BYTES)
    return shares


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret behind at least `threshold` shares; SumError where they are too few or fit no secret."""
    if len(shares) < threshold:
        raise SumError(f"There are {len(shares)} shares, and {threshold} are needed.")
    holders = tuple(sorted(shares))[:threshold]
    points = [int.from_bytes(shares[holder]) for holder in holders]
    secret = sum(weight * point for weight, point in zip(_weights_at_zero(holders), points, strict=True)) % PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise SumError("The shares do not belong together.")
    return secret.to_bytes(SECRET_BYTES)


def liars(shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool] | None = None) -> set[int]:
    """Whose shares are not of the same secret as the others'; empty where all are, or where none are to spare.

    Args:
        shares: by holder.
        threshold: how many give the secret back.
        fits: whether a secret is the right one, where that is known.

    Raises:
        SumError: some are wrong, and with so few it is unknown which.

    >>> shares = split(bytes(16), 2, [0, 1, 2, 3])
    >>> liars(shares, 2), liars({**shares, 2: shares[0]}, 2)
    (set(), {2})
    """

    def right(some: Mapping[int, bytes]) -> bool:
        return _together(some, threshold) and (fits is None or fits(join(some, threshold)))

    if len(shares) < threshold or right(shares):
        return set()
    spare = len(shares) - threshold - (fits is None)
    for holder in sorted(shares) if spare > 0 else ():
        if right({other: share for other, share in shares.items() if other != holder}):
            return {holder}
    raise SumError(f"The shares of devices {', '.join(map(str, sorted(shares)))} do not belong together: one lies.")


def _together(shares: Mapping[int, bytes], threshold: int) -> bool:
    """Whether shares are points of one polynomial of degree t − 1, but for one chance in 2^128."""
    holders = tuple(sorted(shares))
    points = [int.from_bytes(shares[holder]) for holder in holders]
    return sum(c * y for c, y in zip(_dual(holders, threshold), points, strict=True)) % PRIME == 0


@lru_cache(maxsize=64)
def _dual(holders: tuple[int, ...], threshold: int) -> tuple[int, ...]:
    """c_i = g(x_i) / Π (x_i − x_j) for a random g of degree n − t − 1: Σ c_i f(x_i) = 0 for each f of degree t − 1."""
    xs = [holder + 1 for holder in holders]
    random = [secrets.randbelow(PRIME) for _ in range(len(xs) - threshold)]
    found = []
    for x in xs:
        below, value = 1, 0
        for other in xs:
            below = below * (x - other) % PRIME if other != x else below
        for coefficient in random:
            value = (value * x + coefficient) % PRIME
        found.append(value * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


@lru_cache(maxsize=64)
def _weights_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights Π x_j / (x_j − x_i) at 0: the same for all secrets that the same holders give back."""
    xs = [holder + 1 for holder in holders]
    weights = []
    for x in xs:
        above, below = 1, 1
        for other in xs:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
