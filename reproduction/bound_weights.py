"""Which rounds Theorem 1 as printed favors, next to the paper's three patterns and what runs of them measure.

    python -m reproduction.bound_weights --measure [--seeds 0 1 2 3 4] [--out docs/results]
    python -m reproduction.bound_weights [--out docs/results]

The first runs uniform, ascend and descend (mnist-5k, 50 devices, 40 rounds, KFL and local-only) and writes
bound-patterns.json; the second evaluates the bound, prints both and draws bound-weights.svg.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl import Experiment, run
from kfl.algorithms import Algorithm, Kfl, Local
from kfl.plots.style import new_figure, plain_axes, save
from reproduction.theory.theorem1 import (
    PATTERNS,
    Bound,
    Constants,
    equal_counts,
    pattern_schedule,
    round_weights,
    theorem1,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEVICES, ROUNDS, COUNT = 50, 40, 10
ALGORITHMS: dict[str, Algorithm] = {"kfl": Kfl(), "local": Local()}
# Smallest possible A_3 for χ = 0, for χ = 0.9 as estimated from runs, and two nearer to 1, as smaller rates give.
CONTRACTIONS = (0.8125, 0.9, 0.97, 0.99)
ROUNDS_OF_PAPER = 200
BLUE, DASHES = "#0b3d91", (0, (6, 1.5, 1, 1.5))
STYLES: dict[str, tuple[str, Any]] = {
    "uniform": ("#555555", (0, (4, 2))),
    "ascend": ("#c84e00", "-"),
    "descend": (BLUE, DASHES),
}
EXAMPLE = Constants(
    body_smoothness=1.0,
    head_smoothness=1.0,
    cross_sensitivity=0.0,
    body_gradient=1.0,
    head_gradient=1.0,
    feature_gradient=1.0,
    feature_norm=1.0,
    body_rate=0.0,
    head_rate=0.0,
    local_steps=5,
    knowledge_weight=1 / 32,
    initial_gap=2.3,
).at_best_rates()
"""All norms and curvatures 1, at the best rates: whatever they are, patterns differ in the scheduling term alone."""


def measure(seeds: list[int]) -> dict[str, Any]:
    """Accuracy after each round, per algorithm, pattern and seed."""
    started, curves = time.perf_counter(), {}
    for name, algorithm in ALGORITHMS.items():
        for pattern, scheduler in PATTERNS.items():
            asked = Experiment(
                devices=DEVICES,
                distinct_classes=False,
                rounds=ROUNDS,
                widths=(256,),
                algorithm=algorithm,
                scheduler=scheduler(count=COUNT),
            )
            histories = [run(Experiment(**{**vars(asked), "seed": seed})) for seed in seeds]
            curves[f"{name} | {pattern}"] = [[round(a, 5) for a in history.curve()[1]] for history in histories]
            print(f"{name} {pattern}: {np.mean([c[-1] for c in curves[f'{name} | {pattern}']]):.4f}", flush=True)
    return {
        "command": f"python -m reproduction.bound_weights --measure --seeds {' '.join(map(str, seeds))}",
        "dataset": "mnist-5k",
        "devices": DEVICES,
        "rounds": ROUNDS,
        "devices_per_round": COUNT,
        "widths": [256],
        "seeds": seeds,
        "wall_s": round(time.perf_counter() - started, 1),
        "accuracy": curves,
    }


def bounds() -> dict[str, Bound]:
    """The bound for the three patterns, 100 devices and 200 rounds as in the paper."""
    counts = equal_counts(devices=100, classes=10, classes_per_device=2, samples=600)
    return {name: theorem1(EXAMPLE, counts, pattern_schedule(name, ROUNDS_OF_PAPER, 100, 10)) for name in PATTERNS}


def report(measured: dict[str, Any], found: dict[str, Bound]) -> None:
    early = ROUNDS // 4
    print("pattern   scheduling term   total      | accuracy, %: round T/4 and T, mean ± standard deviation over seeds")
    for name, bound in found.items():
        line = f"{name:<9} {bound.scheduling_term:<15.5g}   {bound.total:<10.6g} |"
        for algorithm in ALGORITHMS:
            curves = 100 * np.array(measured["accuracy"][f"{algorithm} | {name}"])
            for t in (early - 1, ROUNDS - 1):
                line += f"  {algorithm} {curves[:, t].mean():.2f} ± {curves[:, t].std(ddof=1):.2f}"
        print(line)
    for algorithm in ALGORITHMS:
        ascend, descend = (100 * np.array(measured["accuracy"][f"{algorithm} | {n}"]) for n in ("ascend", "descend"))
        for t in (early - 1, ROUNDS - 1):
            gap = descend[:, t] - ascend[:, t]
            print(f"descend − ascend, {algorithm}, round {t + 1}: {gap.mean():+.2f} ± {gap.std(ddof=1):.2f} (paired)")


def draw(measured: dict[str, Any], path: Path) -> None:
    figure = new_figure("This study", figsize=(11.4, 3.9), layout="constrained")
    panels = figure.subplots(1, 3)
    draw_weights(panels[0])
    draw_patterns(panels[1])
    draw_measured(panels[2], measured)
    for panel in panels:
        plain_axes(panel)
    save(figure, path)


def draw_weights(panel: Axes) -> None:
    """The weight of each round; names next to the lines, where no other line passes."""
    at = np.arange(ROUNDS_OF_PAPER - 1)
    places = {0.8125: (141, 2e-6, "left"), 0.9: (69, 2e-6, "right"), 0.97: (4, 7e-4, "left"), 0.99: (28, 0.4, "left")}
    for shade, contraction in zip(("0.0", "0.25", "0.4", "0.5"), CONTRACTIONS, strict=True):
        panel.plot(at, round_weights(contraction, ROUNDS_OF_PAPER)[:-1], color=shade, lw=1.8)
        x, y, side = places[contraction]
        panel.text(x, y, f"$A_3$ = {contraction:g}", color=shade, fontsize=9.5, ha=side)
    panel.plot(at, 1 / (at + 1), color=BLUE, lw=1.8, ls=DASHES)
    panel.text(60, 8e-4, "$\\gamma_t$ = 1/(t+1),\nthe scheduler's", color=BLUE, fontsize=9.5)
    panel.set(yscale="log", ylim=(1e-8, 3), xlim=(0, ROUNDS_OF_PAPER - 1))
    panel.set(xlabel="round $t$", ylabel="weight of data scheduled in round $t$")
    panel.set_title("The bound as printed favors late rounds", fontsize=10.5, loc="left")


def draw_patterns(panel: Axes) -> None:
    """How many devices take part in each round."""
    places = {"uniform": (6, 10.4, "left"), "ascend": (134, 14.2, "right"), "descend": (139, 2.6, "right")}
    words = {"uniform": "uniform", "ascend": "ascend:\nsmallest bound", "descend": "descend:\nlargest bound"}
    for name, (colour, style) in STYLES.items():
        panel.plot(pattern_schedule(name, ROUNDS_OF_PAPER, 100, 10).sum(axis=1), color=colour, ls=style, lw=1.8)
        x, y, side = places[name]
        panel.text(x, y, words[name], color=colour, fontsize=9.5, ha=side)
    panel.set(xlim=(0, ROUNDS_OF_PAPER - 1), ylim=(0, 20), yticks=range(0, 21, 5))
    panel.set(xlabel="round $t$", ylabel="devices that take part")
    panel.set_title("Three patterns, the same total", fontsize=10.5, loc="left")


def draw_measured(panel: Axes, measured: dict[str, Any]) -> None:
    """Accuracy over rounds; bands are one standard deviation over seeds."""
    places = {"uniform": (14.6, 67), "ascend": (18.2, 46), "descend": (2.6, 87)}
    for name, (colour, style) in STYLES.items():
        curves = 100 * np.array(measured["accuracy"][f"kfl | {name}"])
        mean, deviation, x = curves.mean(0), curves.std(0, ddof=1), np.arange(1, ROUNDS + 1)
        panel.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.15, lw=0)
        panel.plot(x, mean, color=colour, ls=style, lw=1.8)
        panel.text(*places[name], name, color=colour, fontsize=9.5)
    panel.axvline(ROUNDS // 4, color="0.75", lw=1, zorder=0)
    panel.text(ROUNDS // 4 + 0.6, 2.5, "T/4", color="0.4", fontsize=9.5)
    panel.set(xlim=(1, ROUNDS), ylim=(0, 100), xlabel="round", ylabel="accuracy over all devices, %")
    panel.set_title(f"Measured: KFL, {len(measured['seeds'])} seeds", fontsize=10.5, loc="left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    data = options.out / "bound-patterns.json"
    if options.measure:
        data.write_text(json.dumps(measure(options.seeds)) + "\n")
    measured, found = json.loads(data.read_text()), bounds()
    numbers = {"constants": asdict(EXAMPLE), "bounds": {n: {**asdict(b), "total": b.total} for n, b in found.items()}}
    numbers["weights"] = {str(a): round_weights(a, ROUNDS_OF_PAPER).tolist() for a in CONTRACTIONS}
    (options.out / "bound-weights.json").write_text(json.dumps(numbers) + "\n")
    report(measured, found)
    draw(measured, options.out / "bound-weights.svg")


if __name__ == "__main__":
    main()
