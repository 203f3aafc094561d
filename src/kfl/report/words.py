"""Numbers and text as a page shows them: a number and its unit on one line, text that is only text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kfl.core import text as plain
from kfl.core.names import LONGEST_NAME, for_terminal
from kfl.core.names import for_html as text

__all__ = ["SPACE", "about", "between", "chart_label", "duration", "percent", "quantity", "text"]

SPACE = "\N{NO-BREAK SPACE}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction as a percentage that is not broken over two lines.

    >>> percent(0.9345), percent(None)
    ('93.5\\xa0%', '–')
    """
    return plain.percent(fraction, digits).replace(" ", SPACE)


def quantity(value: float | None, unit: str) -> str:
    """A physical quantity that is not broken over two lines.

    >>> quantity(12345.0, "J")
    '12.3\\xa0kJ'
    """
    return plain.quantity(value, unit).replace(" ", SPACE)


def duration(seconds: float) -> str:
    """A time that is not broken over two lines."""
    return plain.duration(seconds).replace(" ", SPACE)


def chart_label(name: str) -> str:
    """A name in a chart, whose labels are HTML: one short line.

    >>> chart_label("a<b>")
    'a&lt;b&gt;'
    """
    return text(for_terminal(name, LONGEST_NAME))


def about(told: Sequence[tuple[str, str]], otherwise: str) -> str:
    """Sentences about runs, with their names where there are several; of many runs only what is said otherwise.

    >>> about([("mine", "all is well.")], ""), about([("a", "well."), ("b", "better.")], "")
    ('All is well.', 'a: well. b: better.')
    """
    if len(told) == 1:
        return told[0][1][:1].upper() + told[0][1][1:]
    return " ".join(f"{name}: {sentence}" for name, sentence in told) if len(told) <= 2 else otherwise


def between(values: Sequence[tuple[float, str]], show: Callable[[float], str]) -> str:
    """The smallest and the largest of values that have a name each.

    >>> between([(2.0, "b"), (1.0, "a")], str)
    '1.0 (a) to 2.0 (b)'
    """
    return f"{show(min(values)[0])} ({min(values)[1]}) to {show(max(values)[0])} ({max(values)[1]})"


_NAMES = {
    "kfl": "KFL", "shared-stem": "Shared stem", "local": "Training alone", "fedavg": "FedAvg",
    "fedproto": "FedProto", "fedrep": "FedRep", "fedkd": "FedKD", "fedgh": "FedGH", "fedtgp": "FedTGP",
    "fedmrl": "FedMRL", "lg-fedavg": "LG-FedAvg", "apfl": "APFL", "fd": "Federated distillation",
    "fixed-knowledge": "Fixed knowledge", "self-knowledge": "Self-knowledge",
}  # fmt: skip


def title_of(algorithm: str) -> str:
    """An algorithm's name in a title; that of somebody's own is shown as it is.

    >>> title_of("kfl"), title_of("mine:Better")
    ('KFL', 'mine:Better')
    """
    return _NAMES.get(algorithm, algorithm)


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
