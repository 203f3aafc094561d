"""Figures 2c and 3c: does it matter when devices take part? The same total, spread evenly, rising or falling.

The paper lets the number rise from 1 to 20, which is 10.5 on average against uniform's 10; ours rises from 1 to 19.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kfl.paper.setting import DATASETS, TITLES, Figure, Panel, line_of
from kfl.scheduling import Ascend, Descend, Uniform

PATTERNS = (Descend(count=10), Uniform(count=10), Ascend(count=10))


def patterns(name: str, classes: int, models: Literal["equal", "mixed"]) -> Figure:
    """KFL's accuracy over rounds for the three patterns, a panel for each dataset."""
    panels = []
    for dataset in DATASETS:
        lines = [line_of(dataset, classes, models, "kfl", pattern, search=False) for pattern in PATTERNS]
        named = [
            replace(line, label=line.experiment.scheduler.name, style=line.experiment.scheduler.name) for line in lines
        ]
        panels.append(Panel(TITLES[dataset], tuple(named)))
    return Figure(name, f"When devices take part: {models} models, m = {classes}", tuple(panels), columns=2)
