"""All figures by the word that selects them on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kfl.core.errors import ConfigError
from kfl.paper.comparisons import comparison
from kfl.paper.energy import energy_view
from kfl.paper.scheduling import schedulers
from kfl.paper.setting import Figure
from kfl.paper.sharing import sharing
from kfl.paper.temporal import patterns

FIGURES: dict[str, Callable[[], Figure]] = {}
"""Every figure of the paper and its technical report (m = 3), then our own studies."""

for _classes, _end in ((2, ""), (3, "-m3")):
    FIGURES |= {
        f"fig2a{_end}": partial(comparison, f"fig2a{_end}", "mnist", _classes, "equal"),
        f"fig2b{_end}": partial(comparison, f"fig2b{_end}", "cifar10", _classes, "equal"),
        f"fig2c{_end}": partial(patterns, f"fig2c{_end}", _classes, "equal"),
        f"fig3a{_end}": partial(comparison, f"fig3a{_end}", "mnist", _classes, "mixed"),
        f"fig3b{_end}": partial(comparison, f"fig3b{_end}", "cifar10", _classes, "mixed"),
        f"fig3c{_end}": partial(patterns, f"fig3c{_end}", _classes, "mixed"),
        f"fig4a{_end}": partial(schedulers, f"fig4a{_end}", "mnist", _classes, "accuracy"),
        f"fig4b{_end}": partial(schedulers, f"fig4b{_end}", "mnist", _classes, "energy"),
        f"fig4c{_end}": partial(schedulers, f"fig4c{_end}", "cifar10", _classes, "accuracy"),
        f"fig4d{_end}": partial(schedulers, f"fig4d{_end}", "cifar10", _classes, "energy"),
    }
FIGURES |= {"sharing": sharing, "energy": energy_view}

GROUPS: dict[str, tuple[str, ...]] = {
    "m2": tuple(name for name in FIGURES if name.startswith("fig") and not name.endswith("-m3")),
    "m3": tuple(name for name in FIGURES if name.endswith("-m3")),
    "all": tuple(FIGURES),
}
"""Words for several figures."""


def chosen(words: list[str]) -> list[Figure]:
    """The figures that words stand for, each once.

    >>> [figure.name for figure in chosen(["fig2a", "sharing", "fig2a"])]
    ['fig2a', 'sharing']
    """
    names: dict[str, None] = {}
    for word in words:
        if word not in FIGURES and word not in GROUPS:
            raise ConfigError("figure", word, f"list, claims, {', '.join([*GROUPS, *FIGURES])}")
        names |= dict.fromkeys(GROUPS.get(word, (word,)))
    return [FIGURES[name]() for name in names]
