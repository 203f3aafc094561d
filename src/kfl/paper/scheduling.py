"""Figures 4a to 4d: schedulers in the paper's cell, accuracy and used energy, for each power coefficient κ.

The paper does not give κ. At 1e-28 no budget binds; 1e-27 is the commonest published value; the calibrated one pays
for about five devices per round, the size the paper gives its round robin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kfl.algorithms import Kfl
from kfl.paper.setting import TITLES, Dataset, Figure, Line, Panel, base
from kfl.scheduling import Lyapunov, Myopic, RoundRobin, Scheduler
from kfl.wireless import PRESETS

POLICIES: dict[str, tuple[str, Scheduler]] = {
    "v0.1": ("V = 0.1", Lyapunov(v=0.1)),
    "v0.01": ("V = 0.01", Lyapunov(v=0.01)),
    "round-robin": ("round robin", RoundRobin(count=5)),
    "myopic": ("myopic", Myopic()),
}
CALIBRATED = {"mnist": 4e-27, "cifar10": 1e-26}


def coefficients(dataset: Dataset) -> tuple[float, ...]:
    """The values of κ that a figure is made for."""
    return 1e-28, 1e-27, CALIBRATED[dataset]


def policy_key(dataset: Dataset, classes: int, policy: str, kappa: float) -> str:
    """The key of a line of these figures."""
    return f"{dataset} m{classes} mixed kfl {policy} kappa{kappa:g}"


def schedulers(name: str, dataset: Dataset, classes: int, shows: Literal["accuracy", "energy"]) -> Figure:
    """Accuracy or used energy over rounds, a panel for each κ."""
    cell = PRESETS[f"paper-{dataset}"]
    panels = []
    for kappa in coefficients(dataset):
        lines = [
            Line(
                key=policy_key(dataset, classes, policy, kappa),
                label=label,
                style=policy,
                experiment=replace(
                    base(dataset, classes, "mixed", Kfl()),
                    scheduler=scheduler,
                    radio=replace(cell, power_coefficient=kappa),
                ),
            )
            for policy, (label, scheduler) in POLICIES.items()
        ]
        note = ", calibrated" if kappa == CALIBRATED[dataset] else ""
        panels.append(Panel(f"κ = {kappa:g}{note}", tuple(lines)))
    what = "accuracy" if shows == "accuracy" else "energy used, share of the budget"
    return Figure(
        name=name,
        title=f"Schedulers, {TITLES[dataset]}, m = {classes}: {what}",
        panels=tuple(panels),
        columns=3,
        shows=shows,
        full_only=tuple(line.key for line in panels[0].lines),  # nothing binds there, and everybody trains
    )
