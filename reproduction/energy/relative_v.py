"""Which V? Who overspends, how much data is scheduled and who is left out, for every preset and decades of relative V.

    KFL_DATA_DIR=… python -m reproduction energy relative_v --out docs/results/relative-v.jsonl.gz

Who is chosen depends on channel, costs and budgets, not on what is learned, so nothing is trained: the rounds are
decided and charged with the real split, the real models and the costs of the algorithm (KFL's, unless a setting says
FedAvg). Seeds 100 to 102, which no reported result uses. Prints one table for each setting.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kfl import Experiment, FedAvg
from kfl.comparison.records import read_lines, write_records
from kfl.scheduling import Dual, Lyapunov, Scheduler
from kfl.scheduling.accounts import Accounts, decide, settle
from kfl.scheduling.objective import DriftScheduler, data_weight
from kfl.simulation.round import initial_state
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.world import build_world
from kfl.wireless import PRESETS
from reproduction.theory.energy import EnergyAccount

SMALL = Experiment(distinct_classes=False)
MNIST = Experiment(dataset="mnist", devices=100, distinct_classes=False, rounds=200)
CIFAR = Experiment(dataset="cifar10", devices=100, distinct_classes=False, rounds=200)
SETTINGS: dict[str, Experiment] = {
    "paper-mnist, mnist-5k": SMALL,
    "paper-mnist, mnist": MNIST,
    "paper-mnist, mnist, 20 rounds": replace(MNIST, rounds=20),
    "paper-mnist, mnist, κ = 4e-27": replace(MNIST, radio=replace(PRESETS["paper-mnist"], power_coefficient=4e-27)),
    "paper-cifar10, cifar10": CIFAR,
    "paper-cifar10, cifar10, κ = 1e-26": replace(
        CIFAR, radio=replace(PRESETS["paper-cifar10"], power_coefficient=1e-26)
    ),
    "paper-mnist-free-clock, mnist": replace(MNIST, radio="paper-mnist-free-clock"),
    "paper-cifar10-free-clock, cifar10": replace(CIFAR, radio="paper-cifar10-free-clock"),
    "paper-mnist-modem, mnist-5k": replace(SMALL, radio="paper-mnist-modem"),
    "paper-mnist-modem, mnist": replace(MNIST, radio="paper-mnist-modem"),
    "paper-cifar10-modem, cifar10": replace(CIFAR, radio="paper-cifar10-modem"),
    "nb-iot, mnist-5k": replace(SMALL, radio="nb-iot"),
    "nb-iot, mnist-5k, 20 rounds": replace(SMALL, radio="nb-iot", rounds=20),
    "nb-iot, mnist": replace(MNIST, radio="nb-iot"),
    "lte-m, mnist-5k": replace(SMALL, radio="lte-m"),
    "lte-m, mnist": replace(MNIST, radio="lte-m"),
    "wifi, mnist-5k": replace(SMALL, radio="wifi"),
    "wifi, mnist": replace(MNIST, radio="wifi"),
    "5g-phone, mnist-5k": replace(SMALL, radio="5g-phone"),
    "5g-phone, mnist, FedAvg": replace(MNIST, radio="5g-phone", algorithm=FedAvg(), widths=(512,)),
    "small-cell, mnist": replace(MNIST, radio="small-cell"),
    "small-cell, mnist, FedAvg": replace(MNIST, radio="small-cell", algorithm=FedAvg(), widths=(128,)),
    "small-cell, cifar10": replace(CIFAR, radio="small-cell"),
}
RULES: dict[str, dict[str, Any]] = {
    "0.01": {"relative_v": 0.01},
    "0.1": {"relative_v": 0.1},
    "1": {"relative_v": 1.0},
    "10": {"relative_v": 10.0},
    "100": {"relative_v": 100.0},
    "1, any fade": {"relative_v": 1.0, "dearest_upload": float("inf")},
    "1, ε = 1e-6": {"relative_v": 1.0, "device_epsilon": 1e-6},
    "V = 0.01": {"v": 0.01},
}
SEEDS = (100, 101, 102)
SCHEDULERS: dict[str, type[DriftScheduler]] = {kind.name: kind for kind in (Lyapunov, Dual)}


def play(fleet: SimulatedFleet, scheduler: Scheduler) -> tuple[EnergyAccount, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Every round decided and charged, with queues and batteries moved and nothing learned: the account, and who."""
    rounds, table = fleet.experiment.rounds, fleet.table
    accounts = Accounts.start(scheduler, table.budget_j, rounds, fills=False)
    state = replace(initial_state(fleet), accounts=accounts)
    compute_j, upload_j = np.zeros((2, rounds, table.size))
    chosen = np.zeros((rounds, table.size), dtype=bool)
    for t in range(rounds):
        conditions = fleet.observe(state)
        seen, fading = conditions.observation, None if conditions.link is None else conditions.link.fading
        decision = decide(scheduler, state.accounts, seen)
        compute_j[t], upload_j[t] = decision.energy_j()
        chosen[t] = decision.chosen
        accounts = settle(scheduler, state.accounts, seen, decision, compute_j[t], upload_j[t])
        state = replace(state, accounts=accounts, fading=fading)
    return EnergyAccount(compute_j, upload_j, table.budget_j), chosen


def measure(fleet: SimulatedFleet, scheduler: Scheduler) -> dict[str, float]:
    """What a scheduler made of the rounds of one seed."""
    account, chosen = play(fleet, scheduler)
    rounds, samples = len(chosen), fleet.table.samples
    spent_j, dearest_j = account.energy_j.sum(0), account.energy_j.max(0)
    used = spent_j / account.budget_j
    over_j = np.maximum(spent_j - account.budget_j, 0.0)
    gamma = np.array([data_weight("inverse", t) for t in range(rounds)])
    by_round = chosen @ samples / samples.sum()
    return {
        "devices_over_budget": int((used > 1 + 1e-9).sum()),
        "largest_use_of_budget": round(float(used.max()), 5),
        "mean_use_of_budget": round(float(used.mean()), 5),
        "largest_overspend_in_own_dearest_rounds": round(
            float(np.divide(over_j, dearest_j, out=np.zeros_like(over_j), where=dearest_j > 0).max()), 4
        ),
        "dearest_round_over_budget": round(float((dearest_j / account.budget_j).max()), 5),
        "weighted_data": round(float(gamma @ by_round / gamma.sum()), 5),
        "data": round(float(by_round.mean()), 5),
        "devices_never_chosen": int((~chosen.any(0)).sum()),
        "rounds_with_nobody": int((~chosen.any(1)).sum()),
    }


def line(rule: str, found: list[dict[str, float]]) -> str:
    """One row of a table: means over the seeds, and the largest where the worst device is meant."""

    def mean(key: str) -> float:
        return float(np.mean([one[key] for one in found]))

    def worst(key: str) -> float:
        return max(one[key] for one in found)

    return (
        f"| {rule} | {mean('devices_over_budget'):.1f} | {worst('largest_use_of_budget'):.1%} "
        f"| {worst('largest_overspend_in_own_dearest_rounds'):.2f} | {worst('dearest_round_over_budget'):.1%} "
        f"| {mean('mean_use_of_budget'):.1%} | {mean('weighted_data'):.1%} | {mean('data'):.1%} "
        f"| {mean('devices_never_chosen'):.1f} | {mean('rounds_with_nobody'):.0f} |"
    )


def merged(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a file holds already, with these rows in place of theirs, in the order of the settings and rules above."""
    known = read_lines(path, "this study", ("setting", "scheduler", "rule")) if path.exists() else []
    by_key = {(row["setting"], row["scheduler"], row["rule"]): row for row in (*known, *rows)}
    order = [(setting, kind, rule) for setting in SETTINGS for kind in SCHEDULERS for rule in RULES]
    return [by_key[key] for key in order if key in by_key]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="rows that are not measured again are kept")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=list(SCHEDULERS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    options = parser.parse_args()
    for name, experiment in SETTINGS.items():
        if name not in options.only:
            continue
        fleets = [SimulatedFleet(build_world(replace(experiment, seed=seed))) for seed in SEEDS]
        for kind in options.schedulers:
            print(f"\n{name}, {kind}\n")
            print(
                "| relative V | over budget | worst use | in rounds | dearest round | mean use | Σ γ D | Σ D | never "
                "| empty rounds |"
            )
            print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
            for rule in options.rules:
                scheduler = SCHEDULERS[kind](**RULES[rule])
                found = [measure(fleet, scheduler) for fleet in fleets]
                table = fleets[0].table
                v = scheduler.drift_weights(table.budget_j, experiment.rounds, table.samples)[0]
                row = {
                    "setting": name,
                    "scheduler": kind,
                    "rule": rule,
                    "printed_v": float(f"{v:.6g}"),
                    "seeds": list(SEEDS),
                    "by_seed": found,
                }
                print(line(rule, found), flush=True)
                if options.out is not None:
                    write_records(options.out, merged(options.out, [row]))


if __name__ == "__main__":
    main()
