"""What every fuzz test shares: one mutation of something valid, and a judge that knows only two good outcomes."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kfl.core.errors import KflError

PATIENCE_S = 60
"""A case that takes longer hangs."""
TOKENS = (
    b"",
    b"\0",
    b"\xff",
    b"-",
    b"9" * 30,
    b"nan",
    b"1e999",
    b"[",
    b"]",
    b"{",
    b'"',
    b"\n",
    b"= ",
    b"../",
    b"\xc3\x28",
    b",",
)


@contextmanager
def no_hang() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"it took more than {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def mutate(data: bytes, draw: random.Random) -> bytes:
    """One mutation: a bit flipped, bytes cut out, doubled, overwritten, swapped for a token, or the end cut off."""
    place = draw.randrange(len(data) + 1)
    length = draw.choice((1, 1, 2, 4, 8, 64))
    way = draw.randrange(6)
    if way == 0 and place < len(data):
        return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
    if way == 1:
        return data[:place] + data[place + length :]
    if way == 2:
        return data[:place] + data[place : place + length] * 2 + data[place + length :]
    if way == 3:
        return data[:place] + bytes(draw.randrange(256) for _ in range(length)) + data[place + length :]
    if way == 4:
        return data[:place]
    return data[:place] + draw.choice(TOKENS) + data[place + draw.choice((0, length)) :]


def outcome(action: Callable[[], Any]) -> Any:
    """What an action returns, or the KflError it raises, which must be one clear sentence. All else is a bug."""
    with no_hang():
        try:
            return action()
        except KflError as problem:
            text = str(problem)
            assert text.strip().endswith((".", "?", ")")) and len(text) > 15, text
            assert "Traceback" not in text and "object at 0x" not in text, text
            return problem


@pytest.fixture(scope="session")
def mutated() -> Callable[[bytes, random.Random], bytes]:
    """One mutation of some bytes."""
    return mutate


@pytest.fixture(scope="session")
def judged() -> Callable[[Callable[[], Any]], Any]:
    """Runs an action: its result, or its KflError; anything else fails the test."""
    return outcome
