"""KFL and local-only training on real MNIST and CIFAR-10: the numbers of docs/results.md.

    python -m benchmarks.first_results --out docs/results/first-results.jsonl [--device cuda]

K = 100 devices, two shards each as the paper prints the split, 10 random devices per round, 200 rounds, networks
of mixed widths, seeds 0 to 2. One line per finished run; runs that are already in the file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import kfl
from kfl.simulation import History


def experiments(rounds: int, seeds: list[int], datasets: list[str]) -> list[kfl.Experiment]:
    return [
        kfl.Experiment(dataset=dataset, devices=100, rounds=rounds, seed=seed, algorithm=algorithm, evaluate_every=10)
        for dataset in datasets
        for seed in seeds
        for algorithm in (kfl.Kfl(), kfl.Local())
    ]


def record(experiment: kfl.Experiment, history: History, seconds: float, device: str) -> dict[str, Any]:
    rounds, accuracy = history.curve()
    return {
        "dataset": experiment.dataset,
        "algorithm": experiment.algorithm.name,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "accuracy": history.accuracy,
        "curve": {"round": rounds, "accuracy": accuracy},
        "bits_up": history.bits_up,
        "energy_j": history.energy_j,
        "seconds": round(seconds, 1),
        "device": device,
    }


def table(lines: list[dict[str, Any]]) -> str:
    rows = ["dataset    algorithm   accuracy, mean ± standard deviation   seeds"]
    for dataset in sorted({line["dataset"] for line in lines}):
        for algorithm in sorted({line["algorithm"] for line in lines}):
            found = [100 * x["accuracy"] for x in lines if (x["dataset"], x["algorithm"]) == (dataset, algorithm)]
            if found:
                spread = statistics.stdev(found) if len(found) > 1 else 0.0
                rows.append(
                    f"{dataset:<10} {algorithm:<10} {statistics.mean(found):8.2f} ± {spread:.2f}   {len(found):>22}"
                )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--datasets", nargs="+", default=["mnist", "cifar10"])
    options = parser.parse_args()
    lines = []
    if options.out.exists():
        lines = [json.loads(line) for line in options.out.read_text().splitlines()]
    done = {(line["dataset"], line["algorithm"], line["seed"], line["rounds"]) for line in lines}
    for experiment in experiments(options.rounds, options.seeds, options.datasets):
        name = (experiment.dataset, experiment.algorithm.name, experiment.seed, experiment.rounds)
        if name in done:
            continue
        started = time.perf_counter()
        history = kfl.run(experiment, device=options.device)
        lines.append(record(experiment, history, time.perf_counter() - started, options.device))
        with options.out.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(*name, f"{100 * history.accuracy:.2f} %  {lines[-1]['seconds']} s", flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
