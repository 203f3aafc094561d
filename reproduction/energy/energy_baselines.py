"""What schedulers that look at joules do with a fleet's budgets, next to those that do not. Nothing is trained.

    python -m reproduction energy energy_baselines [--seeds 3]

200 rounds of 100 devices with KFL's costs on MNIST and hard budgets, so that no device spends more than it has. Prints,
as means over the seeds: how often devices took part, what that cost, how many ever did, and how large a part of it was
done by the tenth of the fleet that did most (10 % if all do the same).
"""

from __future__ import annotations

import argparse

import numpy as np

from kfl.scheduling import AllDevices, Dual, FixedSet, GreedyEnergy, Scheduler, Uniform, schedule
from kfl.wireless import PRESETS, Cell

CELLS = ("paper-mnist", "paper-mnist-free-clock", "paper-mnist-modem")
SCHEDULERS: tuple[Scheduler, ...] = (Dual(), GreedyEnergy(), FixedSet(count=10), Uniform(count=10), AllDevices())
DEVICES, ROUNDS, SAMPLES = 100, 200, 600


def row(cell: str, scheduler: Scheduler, seed: int) -> tuple[float, float, float, float, float]:
    """Participations, joules, joules of each, devices that took part, and the busiest tenth's part of it."""
    flops, bits = 5 * SAMPLES * 550_346, 640 * 32
    placed = Cell.build(PRESETS[cell], DEVICES, seed)
    problem = placed.problem(ROUNDS, flops=flops, payload_bits=bits, samples=SAMPLES, hard_budget=True)
    horizon = schedule(problem, scheduler)
    times = np.sort(horizon.participation_count)[::-1]
    spent_j = float(horizon.compute_energy_j.sum() + horizon.upload_energy_j.sum())
    total = float(times.sum())
    busiest = float(times[: DEVICES // 10].sum()) / max(total, 1.0)
    return total, spent_j, spent_j / max(total, 1.0), float(np.count_nonzero(times)), busiest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| cell | scheduler | participations | J | J each | devices | busiest tenth |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for cell in CELLS:
        for scheduler in SCHEDULERS:
            rows = np.mean([row(cell, scheduler, seed) for seed in range(options.seeds)], axis=0)
            total, spent, each, devices, busiest = rows
            words = f"| {cell} | `{scheduler.name}` | {total:,.0f} | {spent:,.0f} | {each:.3f} | {devices:.0f} |"
            print(f"{words} {busiest:.0%} |", flush=True)


if __name__ == "__main__":
    main()
