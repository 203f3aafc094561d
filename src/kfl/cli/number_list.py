"""Lists of numbers as people type them: 5, 0,3,7 or 0..4."""

from __future__ import annotations

import re

from kfl.core.errors import ConfigError

MOST = 100_000


def whole_numbers(text: str, field: str) -> list[int]:
    """Whole numbers of 0 or more, each once, in the order given.

    >>> whole_numbers("0..4", "seeds"), whole_numbers("0,3,7", "seeds"), whole_numbers("5", "seeds")
    ([0, 1, 2, 3, 4], [0, 3, 7], [5])
    """
    expected = "numbers such as 5, 0,3,7 or 0..4, the smaller first"
    found: dict[int, None] = {}
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", part)
        if match is None:
            raise ConfigError(field, text, expected)
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MOST:
            raise ConfigError(field, text, expected)
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)


def numbers(text: str, field: str) -> list[float]:
    """Numbers with commas between.

    >>> numbers("0.02, 0.1", "learning_rates")
    [0.02, 0.1]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as problem:
        raise ConfigError(field, text, "numbers with commas between, such as 0.02,0.05") from problem


def in_short(values: list[int]) -> str:
    """Numbers for a person, runs of them as a range.

    >>> in_short([0, 1, 2, 3]), in_short([0, 1]), in_short([5, 7, 8, 9])
    ('0–3', '0, 1', '5, 7–9')
    """
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)
