"""Learning algorithms side by side on real MNIST and CIFAR-10: the numbers of docs/results.md.

    python -m studies.learning --out docs/results/learning.jsonl --device cuda --workers 12

K = 100 devices, two shards each as the paper prints the split, 10 random devices per round, 200 rounds, seeds 0
to 2. One line per finished run; runs that are already in the file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import kfl
from kfl.algorithms import ALGORITHMS

MIXED = (128, 192, 256, 320, 384)
"""The paper's widths for devices with different networks."""
EQUAL = {"mnist": (256,), "cifar10": (128,)}
"""The paper's widths for devices with equal networks."""


def experiments(options: argparse.Namespace) -> list[tuple[str, kfl.Experiment]]:
    found = []
    for dataset in options.datasets:
        for models in options.models:
            for seed in options.seeds:
                for name in options.algorithms:
                    if models == "mixed" and ALGORITHMS[name].needs_equal_models:
                        continue
                    experiment = kfl.Experiment(
                        dataset=dataset,
                        devices=100,
                        rounds=options.rounds,
                        seed=seed,
                        widths=MIXED if models == "mixed" else EQUAL[dataset],
                        algorithm=ALGORITHMS[name](),
                        radio="none",  # sections V-A and V-B of the paper: no limit on energy or band
                        evaluate_every=10,
                    )
                    found.append((models, experiment))
    return found


def play(models: str, experiment: kfl.Experiment, device: str, precision: str) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    started = time.perf_counter()
    history = kfl.run(experiment, device=device, precision=precision)
    rounds, accuracy = history.curve()
    return {
        "dataset": experiment.dataset,
        "models": models,
        "algorithm": experiment.algorithm.name,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "accuracy": history.accuracy,
        "curve": {"round": rounds, "accuracy": accuracy},
        "bits_up": history.bits_up,
        "fedavg_bits_up": history.summary["fedavg_bits_up"],
        "energy_j": round(history.energy_j, 6),
        "seconds": round(time.perf_counter() - started, 1),
        "device": device,
        "precision": precision,
    }


def identity(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[key] for key in ("dataset", "models", "algorithm", "seed", "rounds"))


def table(lines: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds, and the paired difference to local-only training."""
    rows = [f"{'dataset':<10}{'models':<8}{'algorithm':<17}{'accuracy, %':>14}{'minus local-only':>18}{'seeds':>7}"]
    groups = sorted({(line["dataset"], line["models"], line["algorithm"]) for line in lines})
    for group in groups:
        mine = {x["seed"]: 100 * x["accuracy"] for x in lines if (x["dataset"], x["models"], x["algorithm"]) == group}
        alone = {
            x["seed"]: 100 * x["accuracy"]
            for x in lines
            if (x["dataset"], x["models"], x["algorithm"]) == (*group[:2], "local")
        }
        paired = [mine[seed] - alone[seed] for seed in mine if seed in alone]
        versus = spread(paired) if paired and group[2] != "local" else "–"
        rows.append(
            f"{group[0]:<10}{group[1]:<8}{group[2]:<17}{spread(list(mine.values())):>14}{versus:>18}{len(mine):>7}"
        )
    return "\n".join(rows)


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {deviation:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--datasets", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--models", nargs="+", default=["mixed", "equal"], choices=["mixed", "equal"])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {identity(line) for line in lines}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        waiting = [
            pool.submit(play, models, experiment, options.device, options.precision)
            for models, experiment in experiments(options)
            if (experiment.dataset, models, experiment.algorithm.name, experiment.seed, experiment.rounds) not in done
        ]
        for future in as_completed(waiting):
            line = future.result()
            lines.append(line)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(*identity(line), f"{100 * line['accuracy']:.2f} %  {line['seconds']} s", flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
