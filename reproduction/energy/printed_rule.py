"""What the paper's rule for empty queues costs: devices with q = 0 get the least share, and send at full power.

    python -m reproduction energy printed_rule [--rounds 60] [--seeds 5] [--out docs/results]

The paper's MNIST cell (100 devices, 5 MHz, 1 s, 0.1 J per device and round, V = 0.01), energy only, for three
power coefficients κ, which the paper does not give. Both rules run Algorithm 3 on the same channels, each with
its own queues. Writes printed-rule.png, .svg and .json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kfl.plots.style import new_figure, plain_axes, save
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.lyapunov import Lyapunov
from kfl.wireless import PRESETS
from tests.reference.rounds import paper_round

DEVICES, HORIZON = 100, 200
CELL = PRESETS["paper-mnist"]
COEFFICIENTS = {1e-28: "never binds", 1e-27: "commonest value", 4e-27: "pays for 5 devices a round"}
CHOSEN, UPLOAD, COMPUTE = range(3)


def run(as_printed: bool, coefficient: float, seed: int, rounds: int) -> FloatArray:
    """Per round: devices scheduled, joules of all uploads, joules of all computation."""
    scheduler = Lyapunov(v=0.01, as_printed=as_printed)
    radio = replace(CELL, power_coefficient=coefficient)
    budget_j = np.full(DEVICES, radio.budget_j_per_round * HORIZON)
    state = scheduler.init(budget_j, HORIZON)
    rows = []
    for t in range(rounds):
        seen = paper_round(DEVICES, seed, t, radio)
        decision = scheduler.decide(state, seen)
        compute = np.where(decision.chosen, decision.compute_energy_j, 0.0)
        state = scheduler.update(state, decision, compute + decision.upload_energy_j)
        rows.append([decision.chosen.sum(), decision.upload_energy_j.sum(), compute.sum()])
    return np.array(rows, float)


def measure(rounds: int, seeds: int) -> dict[float, dict[str, FloatArray]]:
    """Arrays (seeds, rounds, 3) for each coefficient and both rules."""
    return {
        coefficient: {
            name: np.array([run(printed, coefficient, seed, rounds) for seed in range(seeds)])
            for name, printed in (("printed", True), ("ours", False))
        }
        for coefficient in COEFFICIENTS
    }


def numbers(results: dict[float, dict[str, FloatArray]]) -> dict[str, Any]:
    """The numbers behind the figure, in joules of all devices together, mean over seeds."""
    first = next(iter(results.values()))["ours"]
    table = [
        {
            "power_coefficient": coefficient,
            "rule": name,
            "devices_scheduled": float(runs[:, :, CHOSEN].sum(1).mean()),
            "upload_j_round_0": float(runs[:, 0, UPLOAD].mean()),
            "upload_j": float(runs[:, :, UPLOAD].sum(1).mean()),
            "upload_j_std": float(runs[:, :, UPLOAD].sum(1).std(ddof=1)) if len(runs) > 1 else 0.0,
            "compute_j": float(runs[:, :, COMPUTE].sum(1).mean()),
        }
        for coefficient, rules in results.items()
        for name, runs in rules.items()
    ]
    budget = DEVICES * CELL.budget_j_per_round * first.shape[1]
    return {"devices": DEVICES, "rounds": first.shape[1], "seeds": first.shape[0], "budget_j": budget, "runs": table}


def draw(results: dict[float, dict[str, FloatArray]], folder: Path) -> None:
    """Cumulative joules over rounds, one panel per coefficient; line styles tell the rules apart in gray."""
    seeds = len(next(iter(results.values()))["ours"])
    figure = new_figure("This study", figsize=(10.5, 4.0), layout="constrained")
    panels = figure.subplots(1, len(results), sharey=True)
    for panel, (coefficient, rules) in zip(panels, results.items(), strict=True):
        rounds = np.arange(1, rules["ours"].shape[1] + 1)
        upload = {name: runs[:, :, UPLOAD].cumsum(1) for name, runs in rules.items()}
        compute = rules["ours"][:, :, COMPUTE].cumsum(1).mean(0)
        for name, color, style, label in (
            ("printed", "#b2182b", "-", "uploads, printed rule"),
            ("ours", "#08306b", "-.", "uploads, ours"),
        ):
            panel.plot(rounds, upload[name].mean(0), color=color, lw=2.0, ls=style, label=label)
            panel.fill_between(rounds, upload[name].min(0), upload[name].max(0), color=color, alpha=0.18, lw=0)
        panel.plot(rounds, compute, color="0.3", lw=1.3, ls="--", label="computation, ours")
        budget = DEVICES * CELL.budget_j_per_round * rounds
        panel.plot(rounds, budget, color="0.5", lw=1.3, ls=":", label="budget so far")
        exponent = int(np.floor(np.log10(coefficient)))
        digits = f"{coefficient / 10.0**exponent:.0f} · " if round(coefficient / 10.0**exponent) != 1 else ""
        panel.set_title(f"κ = {digits}$10^{{{exponent}}}$ ({COEFFICIENTS[coefficient]})", fontsize=10)
        panel.set_yscale("log")
        panel.set_xlim(1, rounds[-1])
        panel.set_xlabel("round")
        plain_axes(panel)
    panels[0].set_ylabel("energy since the start,\nall 100 devices [J]")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9.5, handlelength=3)
    figure.suptitle(
        "Uploads cost joules by the printed rule for empty queues, and almost nothing by ours "
        f"(mean of {seeds} seeds; bands: least to most)",
        fontsize=11,
    )
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "svg"):
        save(figure, folder / f"printed-rule.{ending}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    results = measure(options.rounds, options.seeds)
    draw(results, options.out)
    found = numbers(results)
    (options.out / "printed-rule.json").write_text(json.dumps(found, indent=2) + "\n")
    print(f"{'κ':>8} {'rule':8} {'uploads, round 0 [J]':>21} {'uploads, all [J]':>17} {'computation [J]':>16}")
    for row in found["runs"]:
        print(
            f"{row['power_coefficient']:>8.0e} {row['rule']:8} {row['upload_j_round_0']:>21.3g} "
            f"{row['upload_j']:>17.3g} {row['compute_j']:>16.4g}"
        )


if __name__ == "__main__":
    main()
