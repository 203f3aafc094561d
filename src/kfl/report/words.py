"""Numbers and names as a reader wants them: percent, quantities with a prefix, text that is only text."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


SPACE = "\N{NO-BREAK SPACE}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage, with a space that does not break.

    >>> percent(0.9345), percent(None)
    ('93.5\\xa0%', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.{digits}f}{SPACE}%"


def quantity(value: float | None, unit: str) -> str:
    """A physical quantity with three digits and the prefix that fits.

    >>> quantity(12345.0, "J"), quantity(2.5e-8, "J"), quantity(0.0, "s")
    ('12.3\\xa0kJ', '25\\xa0nJ', '0\\xa0s')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return f"0{SPACE}{unit}"
    size = abs(value)
    scale, prefix = next((pair for pair in PREFIXES if size >= pair[0] * 0.9995), PREFIXES[-1])
    return f"{value / scale:.3g}{SPACE}{prefix}{unit}"


def duration(seconds: float) -> str:
    """A time in the unit people use for it.

    >>> duration(42.0), duration(150.0), duration(9000.0)
    ('42\\xa0s', '2\\xa0min 30\\xa0s', '2\\xa0h 30\\xa0min')
    """
    if not math.isfinite(seconds):
        return "–"
    if seconds < 120:
        return f"{seconds:.3g}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes}{SPACE}min" + (f" {rest}{SPACE}s" if rest else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}{SPACE}h" + (f" {minutes}{SPACE}min" if minutes else "")


def several(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> several(1, "device"), several(2000, "device"), several(0, "device")
    ('1 device', '2,000 devices', 'no devices')
    """
    word = noun if count == 1 else (plural or f"{noun}s")
    return f"no {word}" if count == 0 else f"{count:,} {word}"


def text(value: object) -> str:
    """Anything from a run folder as HTML that shows it and does nothing else.

    >>> text("<b>&")
    '&lt;b&gt;&amp;'
    """
    return html.escape(str(value), quote=True)


def shortened(name: str, most: int = 48) -> str:
    """A name that fits beside a line of a plot; the middle is left out where it is too long.

    >>> shortened("a" * 60, 11)
    'aaaaa…aaaaa'
    """
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def about(told: Sequence[tuple[str, str]], otherwise: str) -> str:
    """Sentences about runs, with their names where there are several; of many runs only what is said otherwise.

    >>> about([("mine", "all is well.")], ""), about([("a", "well."), ("b", "better.")], "")
    ('All is well.', 'a: well. b: better.')
    """
    if len(told) == 1:
        return told[0][1][:1].upper() + told[0][1][1:]
    return " ".join(f"{name}: {sentence}" for name, sentence in told) if len(told) <= 4 else otherwise


def between(values: Sequence[tuple[float, str]], show: Callable[[float], str]) -> str:
    """The smallest and the largest of values that have a name each.

    >>> between([(2.0, "b"), (1.0, "a")], str)
    '1.0 (a) to 2.0 (b)'
    """
    return f"{show(min(values)[0])} ({min(values)[1]}) to {show(max(values)[0])} ({max(values)[1]})"
