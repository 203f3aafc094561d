"""The paper's cells as printed, with a free clock, and with a real modem: joules, and what a battery gains.

    KFL_DATA_DIR=… python -m reproduction energy whole_device --joules --out docs/results  # minutes, nothing is trained
    KFL_DATA_DIR=… python -m reproduction energy whole_device --train --out docs/results --device cuda --workers 15
    python -m reproduction energy whole_device --page --out docs/results    # both as tables of the docs

`--joules` takes the decisions of the dual scheduler in the printed cell and charges the same devices in the same rounds
by each model, with the band shared best for it: five seeds, 200 rounds. `--train` runs KFL (mixed models) and FedAvg
(equal models) with `dual` and budgets that cannot be overdrawn, the paper's and a quarter of it, with each model.

Work is charged in two ways: τ forward passes at 4 operations per cycle, as printed, and every real pass at 16
operations per cycle, with which the paper's deadlines can be met (`reproduction.own_figures`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kfl import Experiment
from kfl.comparison import run_many
from kfl.comparison.execution import run_paths
from kfl.comparison.records import Record, read_lines, record, write_records
from kfl.core.files import write_atomic
from kfl.progress import Progress
from kfl.scheduling import Dual
from kfl.scheduling.accounts import decide, settle
from kfl.scheduling.share_band import serve
from kfl.scheduling.uplink import ENERGY_PARTS
from kfl.simulation import History
from kfl.simulation.round import begin
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.world import build_world
from kfl.wireless import PRESETS, CellConfig
from reproduction.own_figures import FLOPS_PER_CYCLE
from reproduction.setting import DATASETS, NAMES, TITLES, Dataset, as_set, base

CELLS = {"printed": "", "free clock": "-free-clock", "modem": "-modem"}
WORK = {"printed work": False, "real work": True}
BUDGETS = {"1": 1.0, "1/4": 0.25}
ALGORITHMS = ("kfl", "fedavg")
SEEDS = (0, 1, 2, 3, 4)
JOULES, RUNS = "whole-device-joules.json", "whole-device.jsonl.gz"


@dataclass(frozen=True)
class Setting:
    """One cell of the comparison, without the seed."""

    dataset: Dataset
    algorithm: str
    work: str
    cell: str
    budget: str = "1"

    @property
    def key(self) -> str:
        """Its name in the results."""
        return " | ".join((self.dataset, self.algorithm, self.work, self.cell, self.budget))

    def experiment(self, seed: int) -> Experiment:
        """Its run."""
        preset = PRESETS[f"paper-{self.dataset}{CELLS[self.cell]}"]
        real = WORK[self.work]
        cell: CellConfig = replace(
            preset,
            flops_per_cycle=FLOPS_PER_CYCLE if real else preset.flops_per_cycle,
            budget_j_per_round=BUDGETS[self.budget] * preset.budget_j_per_round,
        )
        models = "mixed" if self.algorithm == "kfl" else "equal"
        return replace(
            base(self.dataset, 2, "mixed" if models == "mixed" else "equal", as_set(self.algorithm)),
            seed=seed,
            radio=cell,
            real_work=real,
            scheduler=Dual(),
            hard_budget=True,
        )


def settings(budgets: tuple[str, ...] = tuple(BUDGETS)) -> Iterator[Setting]:
    """All of them."""
    for dataset in DATASETS:
        for algorithm in ALGORITHMS:
            for work in WORK:
                for cell in CELLS:
                    for budget in budgets:
                        yield Setting(dataset, algorithm, work, cell, budget)


# ── The same decisions, charged by each model ────────────────────────────────


def joules(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """What the printed cell's decisions cost in each cell: joules by part, and their ratio to the printed ones."""
    fleets = {name: SimulatedFleet(build_world(replace(setting, cell=name).experiment(seed))) for name in CELLS}
    printed = fleets["printed"]
    scheduler, table = printed.experiment.scheduler, printed.table
    states = {name: begin_without_learning(fleet) for name, fleet in fleets.items()}
    parts = {name: dict.fromkeys(ENERGY_PARTS, 0.0) for name in CELLS}
    ratios: dict[str, list[float]] = {name: [] for name in CELLS}
    computing: dict[str, list[float]] = {name: [] for name in CELLS}
    kept = dict.fromkeys(CELLS, 0)
    for t in range(printed.experiment.rounds):
        seen = {}
        for name, fleet in fleets.items():
            state = states[name].at_round(t)
            conditions = fleet.observe(state)
            seen[name] = conditions.observation
            states[name] = replace(state, fading=None if conditions.link is None else conditions.link.fading)
        accounts = states["printed"].accounts
        decision = decide(scheduler, accounts, seen["printed"])
        energy_j = decision.compute_energy_j + decision.upload_energy_j
        accounts = settle(scheduler, accounts, seen["printed"], decision, *decision.energy_j())
        states["printed"] = replace(states["printed"], accounts=accounts)
        for name, observation in seen.items():
            again = serve(replace(observation, hard_budget=False), decision.chosen, np.ones(table.size))
            by_part = again.parts_j(observation.uplink)
            for part, values in by_part.items():
                parts[name][part] += float(values.sum())
            members = again.chosen
            kept[name] += int(members.sum())
            total = again.compute_energy_j + again.upload_energy_j
            ratios[name] += (energy_j[members] / total[members]).tolist()
            computing[name] += (decision.compute_energy_j[members] / again.compute_energy_j[members]).tolist()
    return [
        {
            "setting": replace(setting, cell=name).key,
            "seed": seed,
            "participations": kept["printed"],
            "still_able": kept[name],
            "joules_by_part": {part: float(f"{value:.6g}") for part, value in parts[name].items()},
            "printed_over_this": _spread(ratios[name]),
            "printed_computing_over_this": _spread(computing[name]),
        }
        for name in CELLS
    ]


def begin_without_learning(fleet: SimulatedFleet) -> Any:
    """The first state of a run whose models are not looked at."""
    fleet.table = replace(fleet.table, test_samples=np.zeros_like(fleet.table.test_samples))
    return begin(fleet)


def _spread(values: list[float]) -> list[float]:
    """Least, median, mean and largest."""
    if not values:
        return []
    return [float(f"{one:.5g}") for one in (np.min(values), np.median(values), np.mean(values), np.max(values))]


# ── Accuracy for the same budget ─────────────────────────────────────────────


def train(out: Path, device: str, workers: int, precision: str, only: str = "") -> None:
    """Run what is missing of the settings whose name contains `only`; each result is written as it comes."""
    path = out / RUNS
    found: dict[str, Record] = {}
    if path.exists():
        found = {_name(line): line for line in read_lines(path, "this study", ("setting", "seed"))}
    todo = [
        (setting.key, setting.experiment(seed))
        for setting in settings()
        for seed in SEEDS
        if only in setting.key and _name({"setting": setting.key, "seed": seed}) not in found
    ]
    with tempfile.TemporaryDirectory() as folder:
        experiments = [experiment for _, experiment in todo]
        names = {run.name: one for run, one in zip(run_paths(experiments, Path(folder)), todo, strict=True)}

        def finished(progress: Progress) -> None:
            if progress.problem is not None:
                print(f"{progress.name}: {progress.problem}", flush=True)
            if progress.history is None:
                return
            key, experiment = names[progress.name]
            line = {**_line(key, experiment, progress.history), "device": device, "precision": precision}
            found[_name(line)] = line
            write_records(path, [found[name] for name in sorted(found)])
            print(f"{progress.runs_done} of {progress.runs}: {_name(line)}", flush=True)

        if todo:
            run_many(experiments, folder, workers, finished, device=device, precision=precision)


def _name(line: Record) -> str:
    return f"{line['setting']} | seed {line['seed']}"


def _line(key: str, experiment: Experiment, history: History) -> Record:
    """What is kept of a run."""
    whole = record(experiment, history)
    parts = history.summary.get("energy_by_part_j")
    kept = ("digest", "seed", "accuracy", "energy_j", "upload_energy_j", "time_s", "devices_per_round", "kfl")
    return {
        "setting": key,
        **{name: whole[name] for name in (*kept, "devices_never_chosen")},
        "participations": _spread([float(one["rounds"]) for one in history.devices]),
        **({} if parts is None else {"energy_by_part_j": parts}),
        "curve": {name: whole["curve"][name] for name in ("rounds", "accuracy")},
    }


# ── Tables ───────────────────────────────────────────────────────────────────


def tables(out: Path) -> dict[str, str]:
    """Both results as Markdown, by the name of their file."""
    rows = json.loads((out / JOULES).read_text())
    return {
        "whole-device-joules.md": joules_table(rows) + "\n",
        "whole-device-runs.md": runs_table(read_lines(out / RUNS, "this study", ("setting", "seed"))) + "\n",
    }


def joules_table(rows: list[dict[str, Any]]) -> str:
    """Joules per participation by part, and the factor to the printed model."""
    shown = [part for part in ENERGY_PARTS if any(row["joules_by_part"][part] for row in rows)]
    lines = [
        "| | work | cell | J per participation | " + " | ".join(shown) + " "
        "| computing saved: median (least to largest) |",
        "| --- " * (len(shown) + 5) + "|",
    ]
    for setting in settings(("1",)):
        some = [row for row in rows if row["setting"] == setting.key]
        taken = sum(row["still_able"] for row in some)
        sums = {part: sum(row["joules_by_part"][part] for row in some) / taken for part in shown}
        spreads = [row["printed_computing_over_this"] for row in some]
        least, largest = min(one[0] for one in spreads), max(one[3] for one in spreads)
        median = float(np.mean([one[1] for one in spreads]))
        factor = "" if setting.cell == "printed" else f"{median:.1f} × ({least:.1f} to {largest:.1f})"
        lines.append(
            f"| {TITLES[setting.dataset]}, {NAMES[setting.algorithm]} | {setting.work} | {setting.cell} "
            f"| {sum(sums.values()):.2g} | " + " | ".join(_short(sums[part]) for part in shown) + f" | {factor} |"
        )
    return "\n".join(lines)


def _short(joules: float) -> str:
    return f"{joules:.2g}" if joules else "–"


def runs_table(rows: list[Record]) -> str:
    """Accuracy and participations for each budget, and when the printed run's last accuracy is reached."""
    lines = [
        "| | work | budget | cell | accuracy, % | over printed "
        "| rounds to the printed run's last accuracy | devices per round | never chosen |",
        "| --- " * 9 + "|",
    ]
    by_key: dict[str, list[Record]] = {}
    for row in rows:
        by_key.setdefault(row["setting"], []).append(row)
    order = sorted(
        settings(), key=lambda one: (one.dataset != "mnist", one.algorithm != "kfl", one.work, -BUDGETS[one.budget])
    )
    for setting in order:
        some = sorted(by_key.get(setting.key, []), key=lambda row: row["seed"])
        printed = sorted(by_key.get(replace(setting, cell="printed").key, []), key=lambda row: row["seed"])
        if len(some) != len(SEEDS) or len(printed) != len(SEEDS):
            continue
        values = np.array([row["accuracy"] for row in some])
        gain = values - np.array([row["accuracy"] for row in printed])
        reached = [_first(row, other["accuracy"]) for row, other in zip(some, printed, strict=True)]
        rounds = (
            ""
            if setting.cell == "printed"
            else (
                f"{np.mean([one for one in reached if one is not None]):.0f}"
                if None not in reached
                else f"reached by {sum(one is not None for one in reached)} of {len(reached)} seeds"
            )
        )
        lines.append(
            f"| {TITLES[setting.dataset]}, {NAMES[setting.algorithm]} | {setting.work} | {setting.budget} "
            f"| {setting.cell} | {100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f} "
            f"| {_gain(setting, 100 * gain.mean())} | {rounds} "
            f"| {np.mean([row['devices_per_round'] for row in some]):.1f} "
            f"| {np.mean([row['devices_never_chosen'] for row in some]):.0f} |"
        )
    return "\n".join(lines)


def _gain(setting: Setting, points: float) -> str:
    return "" if setting.cell == "printed" else f"{points:+.1f}"


def _first(row: Record, accuracy: float) -> float | None:
    """The first evaluated round with at least this accuracy."""
    curve = row["curve"]
    return next((r for r, a in zip(curve["rounds"], curve["accuracy"], strict=True) if a >= accuracy - 1e-9), None)


def main() -> None:
    """Measure, train or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the results")
    parser.add_argument("--joules", action="store_true", help="charge the printed decisions by each model")
    parser.add_argument("--train", action="store_true", help="run what is missing")
    parser.add_argument("--page", action="store_true", help="print the tables, and write them next to the results")
    parser.add_argument("--only", default="", help="with --train: settings whose name contains this")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.joules:
        found = []
        for setting in settings(("1",)):
            if setting.cell == "printed":
                for seed in SEEDS:
                    found += joules(setting, seed)
                print(setting.key, flush=True)
        write_atomic(options.out / JOULES, (json.dumps(found, indent=1) + "\n").encode())
    if options.train:
        train(options.out, options.device, options.workers, options.precision, options.only)
    if options.page:
        for name, text in tables(options.out).items():
            write_atomic(options.out / name, text.encode())
            print(text)


if __name__ == "__main__":
    main()
