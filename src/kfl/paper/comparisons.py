"""Figures 2a, 2b, 3a, 3b: learning algorithms side by side, with equal and with mixed models.

The paper shows 10 and 50 devices per round with its own hyper-parameters. We add training alone, which shares nothing,
and a second row in which every algorithm had the same small search.
"""

from __future__ import annotations

from typing import Literal

from kfl.paper.setting import COUNTS, TITLES, Dataset, Figure, Panel, line_of
from kfl.scheduling import Uniform

EQUAL_MODELS = ("kfl", "local", "fedavg", "fedrep", "apfl")
MIXED_MODELS = ("kfl", "local", "fedkd")


def comparison(name: str, dataset: Dataset, classes: int, models: Literal["equal", "mixed"]) -> Figure:
    """Accuracy over rounds: columns are devices per round, rows the paper's hyper-parameters and searched ones."""
    algorithms = EQUAL_MODELS if models == "equal" else MIXED_MODELS
    panels = []
    for search in (False, True):
        for count in COUNTS:
            lines = [line_of(dataset, classes, models, one, Uniform(count), search=search) for one in algorithms]
            care = "after an equal search" if search else "as the paper sets them"
            panels.append(Panel(f"{count} devices per round, {care}", tuple(lines)))
    return Figure(
        name=name,
        title=f"{TITLES[dataset]}, {models} models, m = {classes}",
        panels=tuple(panels),
        columns=2,
        full_only=tuple(line.key for panel in panels[2:] for line in panel.lines),
    )
