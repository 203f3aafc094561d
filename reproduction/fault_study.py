"""Thirty per cent of the scheduled devices fail, in every way there is: does the run complete, and what does it lose?

    python -m reproduction.fault_study --out docs/results/faults.json

100 devices with the paper's different networks, 200 rounds, Lyapunov scheduling with hard budgets, seeds 0 to 2, each
with and without faults. By default on mnist-5k, whose devices hold 40 samples each; the budget is scaled to that, so
that it pays for as many rounds as the paper's does on MNIST. `--dataset mnist` takes the whole of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import kfl
from kfl.core.files import write_json
from kfl.experiment.faults import IN_ROUND, Faults
from kfl.scheduling import Lyapunov

FAILING = 0.30
"""Share of the scheduled devices that fail."""
EACH = 1 - (1 - FAILING) ** (1 / len(IN_ROUND))
"""Probability of each of the six ways, so that together they hit that share."""
FAULTS = Faults(**dict.fromkeys(IN_ROUND, EACH), join=0.1, leave=0.1)
SAMPLES = {"mnist-5k": 40, "mnist": 600}


def experiment(dataset: str, rounds: int, seed: int) -> kfl.Experiment:
    radio = kfl.CellConfig(power_coefficient=4e-27, budget_j_per_round=0.1 * SAMPLES[dataset] / 600)
    return kfl.Experiment(
        dataset=dataset,
        devices=100,
        distinct_classes=False,
        rounds=rounds,
        seed=seed,
        radio=radio,
        scheduler=Lyapunov(v=0.01),
        hard_budget=True,
        evaluate_every=10,
    )


def measure(history: kfl.History) -> dict[str, Any]:
    spent = [d["compute_energy_j"] + d["upload_energy_j"] for d in history.devices]
    kinds = Counter(str(fault["fault"]) for log in history.rounds for fault in log.faults)
    return {
        "accuracy": history.accuracy,
        "rounds": len(history.rounds),
        "scheduled": sum(len(log.devices) for log in history.rounds),
        "faults": dict(sorted(kinds.items())),
        "rejected": history.summary["rejected_uploads"],
        "lost": history.summary["lost_uploads"],
        "fullest": max(s / d["budget_j"] for s, d in zip(spent, history.devices, strict=True)),
        "seconds": history.summary["wall_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", default="mnist-5k", choices=list(SAMPLES))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for seed in options.seeds:
        whole = experiment(options.dataset, options.rounds, seed)
        for name, one in (("no faults", whole), ("faults", replace(whole, faults=FAULTS))):
            key = f"{options.dataset}, {options.rounds} rounds, {name}, seed {seed}"
            if key not in results:
                results[key] = measure(kfl.run(one, device=options.device))
                write_json(options.out, results)
            print(key, results[key], flush=True)
    mine = {k: v for k, v in results.items() if k.startswith(f"{options.dataset}, {options.rounds} rounds")}
    for name in (" no faults", " faults"):
        values = [100 * v["accuracy"] for k, v in mine.items() if k.split(",")[2] == name]
        print(f"{name.strip():<12}{spread(values)} %")
    lost = [
        100 * (mine[k]["accuracy"] - mine[k.replace("no faults", "faults")]["accuracy"]) for k in mine if "no f" in k
    ]
    hit = [sum(v["faults"].values()) / v["scheduled"] for v in mine.values() if v["faults"]]
    print(f"lost         {spread(lost)} points; {100 * statistics.mean(hit):.1f} % of the scheduled devices failed")
    print(f"fullest budget used: {100 * max(v['fullest'] for v in mine.values()):.4f} %")


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {deviation:.2f}"


if __name__ == "__main__":
    main()
