"""TOML and JSON from untrusted sources: whatever is wrong with a text is a ValueError, endless nesting included.

Reading a file may also raise OSError, for one that is no regular file or too large, too; a text that is not UTF-8 is a
ValueError.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfl.core.files import read_regular

LARGEST_TOML, LARGEST_JSON = 1_000_000, 1 << 28
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


def parse_json(text: str | bytes, *, whole: Callable[[str], int] | None = None) -> Any:
    """The value in a JSON text; `whole` reads the digits of an integer in place of `int`.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text, parse_int=whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    return parse_toml(read_regular(path, 4 * LARGEST_TOML).decode())


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return parse_json(read_regular(path, LARGEST_JSON).decode())
