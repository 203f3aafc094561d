"""Compare algorithms under an energy budget: who gets how far before the batteries are empty?

    python examples/compare_energy_budget.py [folder]

Every device has a battery that it cannot overdraw. FedAvg sends a whole network in every round, KFL ten feature
vectors, local-only training nothing: so they can afford different numbers of rounds. `kfl compare` does the same with
more seeds, a plot and intervals. The band and the batteries here were chosen so that FedAvg runs out of energy; in
wider or richer cells it does not.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.comparison import run_many
from kfl.scheduling import RoundRobin
from kfl.wireless import PRESETS

NAMES = ("kfl", "fedavg", "local")
SEEDS = (0, 1)
CELL = replace(PRESETS["small-cell"], bandwidth_hz=10e6, budget_j_per_round=0.005)  # phones around a street's cell


def experiment(name: str, seed: int) -> kfl.Experiment:
    """The same devices, data, channel and batteries for all; only the algorithm differs."""
    return kfl.Experiment(
        devices=20,
        rounds=20,
        widths=(32,),  # equal networks: FedAvg averages weights
        algorithm=ALGORITHMS[name](),
        scheduler=RoundRobin(count=5),
        radio=CELL,
        hard_budget=True,
        evaluate_every=20,
        seed=seed,
    )


def main(folder: Path) -> None:
    """Run all of them into `folder`; finished runs are read, not repeated."""
    histories = iter(run_many([experiment(name, seed) for name in NAMES for seed in SEEDS], folder))
    print("algorithm  accuracy  devices per round  rounds with no device  energy  of it sending")
    for name in NAMES:
        runs = [next(histories) for _ in SEEDS]
        took_part = mean(len(log.devices) for history in runs for log in history.rounds)
        nobody = mean(sum(not log.devices for log in history.rounds) for history in runs)
        sending = sum(history.summary["upload_energy_j"] for history in runs) / sum(h.energy_j for h in runs)
        print(
            f"{name:<10} {mean(h.accuracy for h in runs):8.1%} {took_part:18.1f} {nobody:19.1f} "
            f"{mean(h.energy_j for h in runs):6.2f} J {sending:13.1%}"
        )
    print(f"Run folders are in {folder}: kfl report {folder} makes a page of them.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/energy-budget"))
