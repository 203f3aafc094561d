"""Numbers and other people's text as a reader wants them: SI prefixes, percentages, counts, one harmless line.

What has no value, or none that is finite, is shown as a dash.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby

from kfl.core.names import shortened

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
DASH = "–"
LONGEST_TEXT = 200
ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def quantity(value: float | None, unit: str) -> str:
    """A physical quantity with three significant digits and the SI prefix that fits.

    >>> quantity(1_340_000, "B"), quantity(2.5e-8, "J"), quantity(0, "s"), quantity(0.99999, "W"), quantity(None, "J")
    ('1.34 MB', '25 nJ', '0 s', '1 W', '–')
    """
    if value is None or not math.isfinite(value):
        return DASH
    value = float(f"{value:.3g}")  # round first: 0.99999 W is 1 W, not 1000 mW
    if value == 0:
        return f"0 {unit}"
    scale, prefix = next((pair for pair in PREFIXES if abs(value) >= pair[0]), PREFIXES[-1])
    return f"{value / scale:.3g} {prefix}{unit}"


def bit_count(bits: float | None) -> str:
    """What goes over the air: always in bits, as rates are bit/s. Bytes are for files and memory.

    >>> bit_count(20_480), bit_count(0)
    ('20.5 kbit', '0 bit')
    """
    return quantity(bits, "bit")


def percent(fraction: float | None, digits: int = 2) -> str:
    """A fraction as a percentage.

    >>> percent(0.98312), percent(0.98312, 0), percent(None)
    ('98.31 %', '98 %', '–')
    """
    if fraction is None or not math.isfinite(fraction):
        return DASH
    return f"{100 * fraction:.{digits}f} %"


def fine_percent(fraction: float | None) -> str:
    """A fraction as a percentage with two decimals, or with three significant digits below one per cent.

    >>> fine_percent(0.98312), fine_percent(0.00001234), fine_percent(0.0)
    ('98.31 %', '0.00123 %', '0.00 %')
    """
    if fraction is None or not 0 < abs(fraction) < 0.01:
        return percent(fraction)
    return f"{100 * fraction:.3g} %"


def duration(seconds: float) -> str:
    """A time in the units that people use for it.

    >>> duration(42.0), duration(150.0), duration(9000.0)
    ('42 s', '2 min 30 s', '2 h 30 min')
    """
    if not math.isfinite(seconds):
        return DASH
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h" + (f" {minutes} min" if minutes else "")


def in_short(values: Sequence[int]) -> str:
    """Numbers for a person, runs of them as a range.

    >>> in_short([0, 1, 2, 3]), in_short([0, 1]), in_short([5, 7, 8, 9])
    ('0–3', '0, 1', '5, 7–9')
    """
    runs = groupby(enumerate(sorted(values)), key=lambda pair: pair[1] - pair[0])
    parts = [[value for _, value in run] for _, run in runs]
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)


def several(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun.

    >>> several(1, "device"), several(2000, "device"), several(0, "device")
    ('1 device', '2,000 devices', 'no devices')
    """
    word = noun if count == 1 else (plural or f"{noun}s")
    return f"no {word}" if count == 0 else f"{count:,} {word}"


def shown(value: object, most: int = LONGEST_TEXT) -> str:
    r"""A value in a sentence as Python writes it: quoted, with escapes for what cannot be shown, and not long.

    >>> print(shown("a\nb"), shown("x" * 90, 13))
    'a\nb' 'xxxxx…xxxxx'
    """
    return shortened(repr(value), most)


def scrub(text: object, longest: int = LONGEST_TEXT, *, hide_paths: bool = True) -> str:
    r"""Sanitize untrusted text to a single short line without control characters or paths.

    Terminals obey escape sequences and people believe line breaks, so both go; paths reveal more about a machine than
    any device needs to know.

    >>> scrub("No file\n/home/me/secret.py \x1b[31mhere")
    'No file … here'
    """
    visible = ESCAPE_SEQUENCE.sub("", str(text)[: 20 * longest])
    words = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in visible).split()
    if hide_paths:
        words = ["…" if "/" in word or "\\" in word else word for word in words]
    line = " ".join(words)
    return line if len(line) <= longest else line[: longest - 1] + "…"
