"""What somebody meant who wrote a word that is not known: the nearest one that is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

SHORTEST_PART = 3
"""Letters that the beginning of a word needs to stand for the whole of it."""

SYNONYMS = {
    "gpu": "cuda",
    "cuda:0": "cuda",
    "fp32": "float32",
    "float": "float32",
    "single": "float32",
    "fp64": "float64",
    "double": "float64",
    "bfloat16": "bf16",
    "dir": "dirichlet",
    "noniid": "shards",
    "pathological": "shards",
    "random": "uniform",
    "sequential": "round-robin",
    "drift-plus-penalty": "lyapunov",
    "prototypes": "fedproto",
    "standalone": "local",
    "fmnist": "fashion-mnist",
    "cifar": "cifar10",
    "digits": "mnist-5k",
    "resnet": "resnet8",
    "wb": "wandb",
    "5g": "5g-phone",
    "lte": "lte-m",
}
"""Other people's words for ours; one whose meaning is not among the known words is ignored."""


def nearest(word: object, known: Iterable[object], also: Mapping[str, str] | None = None) -> str | None:
    """The known word that was probably meant, or None where none is near.

    Capitals, hyphens, underscores and blanks do not count. `also` holds more of other people's words for known ones
    than `SYNONYMS`.

    >>> nearest("Lyapunv", ["uniform", "lyapunov"]), nearest("CIFAR-10", ["mnist", "cifar10"]), nearest("x", ["mnist"])
    ('lyapunov', 'cifar10', None)
    >>> nearest("lyap", ["uniform", "lyapunov"]), nearest("horizon", ["rounds"], {"horizon": "rounds"})
    ('lyapunov', 'rounds')
    """
    names = {_plain(name): str(name) for name in known}
    wanted = _plain(word)
    if not wanted:
        return None
    for foreign, ours in {**SYNONYMS, **(also or {})}.items():
        if _plain(foreign) == wanted and _plain(ours) in names:
            return names[_plain(ours)]
    if wanted in names:
        return names[wanted]
    if close := difflib.get_close_matches(wanted, names, 1):
        return names[close[0]]
    parts = [name for name in names if len(wanted) >= SHORTEST_PART and name.startswith(wanted)]
    return names[parts[0]] if len(parts) == 1 else None


def did_you_mean(word: object, known: Iterable[object], also: Mapping[str, str] | None = None) -> str:
    """The question that ends a sentence about an unknown word, before its full stop; empty where none is near.

    >>> f"There is no kfl rnu{did_you_mean('rnu', ['run', 'report'])}."
    'There is no kfl rnu (did you mean run?).'
    """
    near = nearest(word, known, also)
    return "" if near is None else f" (did you mean {near}?)"


def _plain(word: object) -> str:
    return re.sub(r"[-_\s]+", "", str(word).casefold())
