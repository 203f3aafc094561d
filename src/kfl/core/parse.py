"""TOML and JSON from strangers: whatever is wrong with a text is a ValueError, a text nested without end included."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

LARGEST_TOML = 1_000_000
DEEP_KEY = re.compile(r"(?:[\w\-\"']{1,64}\s{0,4}\.\s{0,4}){33}")


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a TOML text.

    >>> parse_toml("a = 1")
    {'a': 1}
    """
    # tomllib takes time that grows with the square of a key's parts.
    if len(text) > LARGEST_TOML or DEEP_KEY.search(text):
        raise ValueError("it is too long, or nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json(text: str | bytes) -> Any:
    """The value in a JSON text.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
