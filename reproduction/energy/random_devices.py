"""Does the default V lose to random devices? Every preset, `lyapunov` and `dual`, soft and hard budgets.

    python -m reproduction energy random_devices --out docs/results/random-devices.jsonl.gz

30 devices learn mnist-5k in 40 rounds of KFL. Next to the two schedulers stand random devices that may not overdraw
their budgets: ten a round, `uniform`'s default, and as many a round as `dual` with hard budgets chose on average.
Differences are paired by seed, with the 95 % interval of the t-test.

What is learned depends on who takes part, not on what that costs. So the rounds of every run are decided and charged
first (`reproduction.energy.relative_v.play`), and runs with the same devices in the same rounds are trained once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import kfl
from kfl import Experiment
from kfl.comparison.records import read_lines, write_records
from kfl.comparison.statistics import paired_difference
from kfl.scheduling import Dual, Lyapunov, Scheduler, Uniform
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.world import build_world
from kfl.wireless import PRESETS
from reproduction.energy.relative_v import play

SEEDS = (0, 1, 2, 3, 4)
BASE = Experiment(devices=30, rounds=40, evaluate_every=40)
RANDOM, AS_MANY = "10 random", "as many random"
Result = dict[str, Any]
Learned = dict[tuple[int, bytes], tuple[float, float]]


def one_run(experiment: Experiment, learned: Learned) -> Result:
    """What one scheduler made of one seed."""
    account, chosen = play(SimulatedFleet(build_world(experiment)), experiment.scheduler)
    key = experiment.seed, chosen.tobytes()
    if key not in learned:
        history = kfl.run(experiment, allow_nobody=True)
        learned[key] = history.accuracy, history.worst_tenth
    used = account.energy_j.sum(0) / account.budget_j
    return {
        "accuracy": round(learned[key][0], 5),
        "worst_tenth": round(learned[key][1], 5),
        "energy_j": round(float(account.energy_j.sum()), 4),
        "mean_use_of_budget": round(float(used.mean()), 4),
        "largest_use_of_budget": round(float(used.max()), 4),
        "devices_per_round": round(float(chosen.sum(1).mean()), 3),
        "rounds_with_nobody": int((~chosen.any(1)).sum()),
        "devices_never_chosen": int((~chosen.any(0)).sum()),
    }


def one_seed(preset: str, seed: int, learned: Learned, schedulers: Mapping[str, Scheduler]) -> dict[str, Result]:
    """All rows of a preset for one seed."""
    soft = replace(BASE, radio=preset, seed=seed)
    hard = replace(soft, hard_budget=True)
    found: dict[str, Result] = {}
    for name, scheduler in schedulers.items():
        found[f"{name}, soft"] = one_run(replace(soft, scheduler=scheduler), learned)
        found[f"{name}, hard"] = one_run(replace(hard, scheduler=scheduler), learned)
    as_many = max(1, round(found[f"{next(iter(schedulers))}, hard"]["devices_per_round"]))
    for name, count in ((RANDOM, 10), (AS_MANY, as_many)):
        found[name] = one_run(replace(hard, scheduler=Uniform(count=count)), learned)
    return found


def table(preset: str, by_seed: Mapping[int, dict[str, Result]]) -> str:
    """The rows of a preset: means, and differences from each kind of random devices."""
    rows = []
    for name in next(iter(by_seed.values())):

        def mean(measure: str, name: str = name) -> float:
            return float(np.mean([found[name][measure] for found in by_seed.values()]))

        most = max(found[name]["largest_use_of_budget"] for found in by_seed.values())
        cells = [
            f"{preset}, {len(by_seed)} seeds",
            name,
            f"{mean('accuracy'):.1%}",
            f"{mean('worst_tenth'):.1%}",
            f"{mean('energy_j'):.4g}",
            f"{mean('mean_use_of_budget'):.0%}, {most:.0%}",
            f"{mean('devices_per_round'):.1f}",
            *(" " if name == other else difference(by_seed, name, other) for other in (RANDOM, AS_MANY)),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def difference(by_seed: Mapping[int, dict[str, Result]], name: str, other: str) -> str:
    """Points of accuracy, paired by seed."""
    ours, theirs = ({seed: 100 * found[one]["accuracy"] for seed, found in by_seed.items()} for one in (name, other))
    found = paired_difference(ours, theirs)
    assert found is not None
    interval = "" if found.low is None else f" ({found.low:+.1f} to {found.high:+.1f})"
    return f"{found.mean:+.1f}{interval}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="presets and seeds that it holds are not measured again")
    parser.add_argument("--only", nargs="+", choices=PRESETS, default=list(PRESETS), metavar="PRESET")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--gamma", help="another weight of rounds, to try")
    parser.add_argument("--relative-v", type=float, help="another V, to try")
    options = parser.parse_args(arguments)
    tried = {name: value for name in ("gamma", "relative_v") if (value := getattr(options, name)) is not None}
    schedulers = {kind.name: kind(**tried) for kind in (Dual, Lyapunov)}
    known: dict[str, dict[int, dict[str, Result]]] = {}
    if options.out is not None and options.out.exists():
        for row in read_lines(options.out, "this study", ("preset", "seed", "runs")):
            known.setdefault(row["preset"], {})[row["seed"]] = row["runs"]
    learned: Learned = {}
    for seed in options.seeds:
        for preset in options.only:
            if seed in known.get(preset, {}):
                continue
            known.setdefault(preset, {})[seed] = one_seed(preset, seed, learned, schedulers)
            if options.out is not None:
                rows = [
                    {"preset": name, "seed": number, "runs": known[name][number]}
                    for name in PRESETS
                    for number in sorted(known.get(name, {}))
                ]
                write_records(options.out, rows)
    print(
        "| cell | scheduler | accuracy | worst tenth | joules | use of budgets, mean and most | devices a round ",
        end="",
    )
    print(f"| minus {RANDOM} | minus {AS_MANY} |\n" + "| --- " * 9 + "|")
    for preset in options.only:
        print(table(preset, {seed: known[preset][seed] for seed in sorted(known[preset])}))


if __name__ == "__main__":
    main()
