"""The view the paper lacks: all learning algorithms with the same battery and the same band.

Lyapunov scheduling with a hard budget, equal models, in the paper's cell and in a small cell where uploading the whole
MLP costs more than training it. Accuracy is drawn against joules, seconds and uploaded bits.
"""

from __future__ import annotations

from dataclasses import replace

from kfl.paper.setting import DATASETS, NAMES, TITLES, Figure, Line, Panel, as_set, base
from kfl.plots import Axis
from kfl.scheduling import Lyapunov

ALGORITHMS = ("kfl", "local", "fedavg", "fedrep", "apfl", "fedkd")
ACROSS: tuple[Axis, ...] = ("joules", "seconds", "bits")
CELLS = {"the paper's cell": "auto", "small cell, where the uplink matters": "small-cell"}


def energy_view() -> Figure:
    """Accuracy over joules, seconds and bits, a row for each dataset and cell."""
    panels = []
    for dataset in DATASETS:
        for title, radio in CELLS.items():
            lines = [
                Line(
                    key=f"energy {dataset} m2 equal {name} {radio}",
                    label=NAMES[name],
                    style=name,
                    experiment=replace(
                        base(dataset, 2, "equal", as_set(name)),
                        scheduler=Lyapunov(v=0.01),
                        radio=radio,
                        hard_budget=True,
                    ),
                )
                for name in ALGORITHMS
            ]
            panels += [Panel(f"{TITLES[dataset]}, {title}", tuple(lines), across) for across in ACROSS]
    return Figure("energy", "The same battery and band for every algorithm", tuple(panels), columns=len(ACROSS))
