"""A week of 1,000 devices that live on the sun: who takes part, who starves, and what is wasted, by scheduler.

    KFL_DATA_DIR=… python -m reproduction energy harvest_week --out docs/results/harvest-week.jsonl.gz

A round every ten minutes from midnight on, 1,008 in all, in the LTE-M cell. A panel gives at most a milliwatt for
learning, a battery holds 10 J and starts half full. Who is chosen depends on costs, channel and charge, not on what is
learned, so nothing is trained: rounds are played whole, with the real split and models of MNIST, but for the training.
A stand-in for learning is coverage: a device's data count 1 − 2^(−n/20) after n uploads that arrived, averaged over all
data. Prints the table of docs/results/radio.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl import Experiment
from kfl.comparison.records import read_lines, write_records
from kfl.plots.style import new_figure, plain_axes, save
from kfl.scheduling import AllDevices, Dual, GreedyEnergy, Lyapunov, Myopic, RoundRobin, Scheduler, Uniform
from kfl.simulation import build_world
from kfl.simulation.fleet import IntArray
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.wireless import PRESETS, CellConfig, SolarHarvest

if TYPE_CHECKING:
    from kfl.algorithms import Upload
    from kfl.algorithms.base import Message
    from kfl.models import State
    from kfl.simulation import RunState

CELL: CellConfig = replace(
    PRESETS["lte-m"],
    round_period_s=600.0,
    battery_capacity_j=10.0,
    initial_charge=0.5,
    harvest=SolarHarvest(peak_w=1e-3),
)
DAYS, ROUNDS_A_DAY = 7, 144
WEEK = Experiment(
    dataset="mnist",
    devices=1000,
    distinct_classes=False,
    rounds=DAYS * ROUNDS_A_DAY,
    widths=(128,),
    tested_devices=100,
    radio=CELL,
)
HALVED = 20
"""Uploads after which half of a device's data count."""


def schedulers(devices: int) -> dict[str, Scheduler]:
    """Those that count take a tenth of the devices: about what the harvest pays for."""
    count = devices // 10
    return {
        "uniform": Uniform(count=count),
        "round-robin": RoundRobin(count=count),
        "greedy-energy": GreedyEnergy(count=count),
        "myopic": Myopic(),
        "all": AllDevices(),
        "lyapunov": Lyapunov(),
        "dual": Dual(),
    }


class UntrainedFleet(SimulatedFleet):
    """Devices that do everything but learn."""

    def _train(
        self, state: RunState, devices: list[int], message: Message
    ) -> tuple[dict[int, State], list[Upload], list[int]]:
        return {device: {} for device in devices}, [], []

    def evaluate(self, state: RunState, devices: Collection[int]) -> IntArray:
        """No device is tested."""
        return state.correct


def gini(values: NDArray[Any]) -> float:
    """0 where all are alike, toward 1 where one has everything.

    >>> gini(np.ones(4)), gini(np.array([0, 0, 0, 1]))
    (0.0, 0.75)
    """
    ordered, n = np.sort(values), len(values)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * max(ordered.sum(), 1)))


def play(fleet: SimulatedFleet) -> dict[str, Any]:
    """A week, and what became of it."""
    began, state, rounds = time.perf_counter(), begin(fleet), fleet.experiment.rounds
    used = np.zeros(fleet.table.size, dtype=np.int64)
    chosen, empty, dry, spent_j = np.zeros(rounds), np.zeros(rounds), 0, 0.0
    for t in range(rounds):
        state, log = play_round(fleet, state)
        used[[device for device in log.devices if device not in log.lost]] += 1
        chosen[t], empty[t] = len(log.devices), len(log.empty)
        dry, spent_j = dry + len(log.faults), spent_j + log.energy_j
    batteries, samples = state.accounts.batteries, fleet.table.samples
    assert batteries is not None
    by_hour = chosen.reshape(-1, 24, ROUNDS_A_DAY // 24).mean(axis=(0, 2))
    return {
        "parts": int(used.sum()),
        "least": int(used.min()),
        "median": float(np.median(used)),
        "most": int(used.max()),
        "gini": gini(used),
        "coverage": float((1 - 2.0 ** (-used / HALVED)) @ samples / samples.sum()),
        "ran_dry": dry,
        "empty": float(batteries.empty_rounds.mean() / rounds),
        "most_empty_at_once": int(empty.max()),
        "wasted": float(batteries.wasted_j.sum() / batteries.harvested_j.sum()),
        "j_per_part": spent_j / max(int(used.sum()), 1),
        "charge_left": float(batteries.charge_j.mean() / batteries.capacity_j),
        "by_hour": by_hour.round(2).tolist(),
        "used": np.sort(used).tolist(),
        "wall_s": round(time.perf_counter() - began, 1),
    }


def table(found: Sequence[dict[str, Any]]) -> str:
    """Means over the seeds; the least and the most over all of them."""
    lines = [
        "| scheduler | charge | parts taken | least | median | Gini | rounds empty | ran dry | harvest wasted "
        "| J per part | data covered |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, mode in dict.fromkeys((row["scheduler"], row["mode"]) for row in found):
        rows = [row for row in found if (row["scheduler"], row["mode"]) == (name, mode)]

        def mean(key: str, rows: Sequence[dict[str, Any]] = rows) -> float:
            return float(np.mean([row[key] for row in rows]))

        lines.append(
            f"| `{name}` | {mode} | {mean('parts'):,.0f} | {min(row['least'] for row in rows)} "
            f"| {mean('median'):.0f} | {mean('gini'):.2f} | {mean('empty'):.1%} | {mean('ran_dry'):,.0f} "
            f"| {mean('wasted'):.1%} | {mean('j_per_part'):.2f} | {mean('coverage'):.1%} |"
        )
    return "\n".join(lines)


def plot(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Who takes part at which hour, and how evenly, in hard mode."""
    figure = new_figure("the picture of a week", figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = [row for row in found if row["mode"] == "hard"]
    styles = ["-", "--", ":", "-.", (0, (1, 1)), (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1))]
    for style, name in zip(styles, dict.fromkeys(row["scheduler"] for row in rows), strict=False):
        mine = [row for row in rows if row["scheduler"] == name]
        left.plot(np.arange(24) + 0.5, np.mean([row["by_hour"] for row in mine], axis=0), linestyle=style, label=name)
        right.plot(np.mean([row["used"] for row in mine], axis=0), linestyle=style, label=name)
    plain_axes(left)
    plain_axes(right)
    left.set(xlabel="hour of the day", ylabel="devices in a round", xlim=(0, 24), xticks=range(0, 25, 6))
    right.set(xlabel="devices, the idlest first", ylabel="rounds with an upload that arrived")
    left.legend(frameon=False, fontsize=8)
    save(figure, path)


def weeks(seeds: Sequence[int], only: str) -> list[dict[str, Any]]:
    """Every scheduler in hard mode, and two that plan without looking at the charge in soft mode too."""
    found = []
    for seed in seeds:
        world = build_world(replace(WEEK, seed=seed))
        for name, scheduler in schedulers(WEEK.devices).items():
            for mode in ("hard", "soft") if name in ("uniform", "lyapunov") else ("hard",):
                if only not in (name, ""):
                    continue
                asked = replace(world.experiment, scheduler=scheduler, hard_budget=mode == "hard")
                row = play(UntrainedFleet(replace(world, experiment=asked)))
                found.append({"scheduler": name, "mode": mode, "seed": seed, **row})
                print(f"{name}, {mode}, seed {seed}: {row['parts']:,} parts in {row['wall_s']:.0f} s", flush=True)
    return found


def main() -> None:
    """Play, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1", help="with commas between")
    parser.add_argument("--only", default="", help="one scheduler")
    parser.add_argument("--out", type=Path, help="file of JSON lines to write; one that ends in .gz is compressed")
    parser.add_argument("--plot", type=Path, help="picture to draw, of what was played or --read")
    parser.add_argument("--read", type=Path, nargs="*", help="such files of before, in place of playing")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.read:
        found = [row for path in options.read for row in read_lines(path, "this study", ("scheduler", "mode", "seed"))]
    else:
        found = weeks(seeds, options.only)
    print(table(found))
    if options.out is not None:
        write_records(options.out, found)
    if options.plot is not None:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
