"""Energies and budgets of stored runs, found again: python -m reproduction energy stored_budgets [WORD ...]

Who is chosen, and what it costs, does not depend on training. So the schedules of the runs in docs/results/paper (those
with every WORD in their name; Fig. 4 by default) are played again without it, and their energy, the number of devices
over budget and the worst device's use of its budget are compared with what is stored. Exit status 1 where one differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.world import build_world
from reproduction.energy.relative_v import play
from reproduction.figures import FIGURES
from reproduction.results import Store
from reproduction.setting import FULL, runs

RESULTS = Path("docs/results/paper")


def main(words: list[str]) -> int:
    """Play and compare."""
    different, seen = 0, 0
    every = {name: experiment for build in FIGURES.values() for name, experiment in runs(build(), FULL)}
    stored = Store.open(RESULTS, every).rows
    for name, experiment in sorted(every.items()):
        if experiment.cell_config is None or not all(word in name for word in words):
            continue
        fleet, row = SimulatedFleet(build_world(experiment)), stored[name]
        account = play(fleet, experiment.scheduler)[0]
        energy_j, used = float(account.energy_j.sum()), account.energy_j.sum(axis=0) / account.budget_j
        over, worst = int((used > 1 + 1e-9).sum()), float(used.max())
        same = (
            abs(energy_j / row["energy_j"] - 1) < 1e-9
            and over == row["devices_over_budget"]
            and abs(worst - row["largest_use_of_budget"]) < 1e-6
        )
        seen, different = seen + 1, different + (not same)
        print(
            f"{'same' if same else 'DIFFERENT'}  {name}: {energy_j:.6g} J, {over} over, worst {worst:.6f}", flush=True
        )
    print(f"{seen} runs, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["kappa"]))
