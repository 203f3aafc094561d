"""Energy over 200 rounds at the paper's MNIST settings: V = 0.01, V = 0.1, round robin, myopic, for each κ.

    python -m studies.energy_curves --out docs/results

Who is scheduled depends on channel, queues and costs, not on what is learned, so no model is trained here. K = 100
devices with 600 samples each, networks of mixed widths, KFL's payload of 640 × 32 bits, seeds 0 to 4. Writes
energy-curves.json (all curves), energy-curves.svg and .png, and prints the properties the paper claims.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kfl.core.randomness import stream
from kfl.plots.style import new_figure, plain_axes, save
from kfl.scheduling import (
    AllDevices,
    Dual,
    EnergyAccount,
    Lyapunov,
    Myopic,
    Observation,
    RoundRobin,
    Scheduler,
    Uplink,
    proposition2_energy,
)
from kfl.wireless import PRESETS, Cell

ROUNDS, DEVICES, SAMPLES, STEPS = 200, 100, 600, 5
WIDTHS = (128, 192, 256, 320, 384)
KAPPAS = (1e-28, 1e-27, 4e-27)
SCHEDULERS: dict[str, Scheduler] = {
    "V = 0.01": Lyapunov(v=0.01),
    "V = 0.1": Lyapunov(v=0.1),
    "dual, V = 0.01": Dual(v=0.01),
    "round robin": RoundRobin(count=5),
    "myopic": Myopic(),
}


def mlp_flops(width: int) -> int:
    """Forward pass of 784-512-width-64-10, counted as its parameters."""
    return 785 * 512 + 513 * width + (width + 1) * 64 + 650


def play(scheduler: Scheduler, kappa: float, seed: int) -> EnergyAccount:
    """200 rounds of decisions and queues, without learning."""
    cell = Cell.build(replace(PRESETS["paper-mnist"], power_coefficient=kappa), DEVICES, seed)
    widths = np.array(WIDTHS)[(stream(seed, "architecture").random(DEVICES) * len(WIDTHS)).astype(int)]
    flops = STEPS * SAMPLES * np.array([mlp_flops(int(width)) for width in widths], dtype=np.float64)
    samples = np.full(DEVICES, float(SAMPLES))
    budget_j = cell.budget_j(ROUNDS)
    state = scheduler.init(budget_j, ROUNDS)
    compute, upload = np.zeros((2, ROUNDS, DEVICES))
    for t in range(ROUNDS):
        link = cell.link_state(t, flops, 640 * 32)
        uplink = Uplink(
            link.bandwidth_hz, link.noise_w_per_hz, link.gain, link.payload_bits, link.upload_time_s, link.max_power_w
        )
        seen = Observation(
            round=t,
            seed=seed,
            samples=samples,
            available=np.ones(DEVICES, dtype=bool),
            compute_time_s=link.compute_time_s,
            compute_energy_j=link.compute_energy_j,
            battery_j=budget_j - compute.sum(0) - upload.sum(0),
            hard_budget=False,
            uplink=uplink,
        )
        decision = scheduler.decide(state, seen)
        compute[t] = np.where(decision.chosen, link.compute_energy_j, 0.0)
        upload[t] = np.where(decision.chosen, decision.upload_energy_j, 0.0)
        state = scheduler.update(state, decision, compute[t] + upload[t])
    return EnergyAccount(compute, upload, budget_j)


def measure(seeds: list[int]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    everybody_j = {kappa: float(play(AllDevices(), kappa, seeds[0]).energy_j.sum()) for kappa in KAPPAS}
    for kappa in KAPPAS:
        for name, scheduler in SCHEDULERS.items():
            accounts = [play(scheduler, kappa, seed) for seed in seeds]
            curves = np.array([np.cumsum(a.energy_j.sum(1)) / a.budget_j.sum() for a in accounts])
            chosen = np.array([(a.compute_j > 0).sum(1) for a in accounts])
            used = np.array([a.energy_j.sum(0) / a.budget_j for a in accounts])
            samples = np.full(DEVICES, float(SAMPLES))
            weights = scheduler.drift_weights(accounts[0].budget_j, ROUNDS, samples)
            bound = None if weights is None else proposition2_energy(accounts[0], samples, *weights, everybody_j[kappa])
            results[f"{kappa:g} | {name}"] = {
                "kappa": kappa,
                "scheduler": name,
                "seeds": seeds,
                "curve_mean": curves.mean(0).round(6).tolist(),
                "curve_sd": curves.std(0, ddof=1).round(6).tolist(),
                "devices_per_round_mean": chosen.mean(0).round(3).tolist(),
                "use_of_budget_end": [round(float(c), 6) for c in curves[:, -1]],
                "use_of_budget_30": [round(float(c), 6) for c in curves[:, 29]],
                "devices_over_budget": [int((u > 1 + 1e-9).sum()) for u in used],
                "worst_device_use": [round(float(u.max()), 4) for u in used],
                "regime": accounts[0].dominant(),
                "proposition2_seed0": None if bound is None else str(bound),
            }
    return results


def claims(results: dict[str, Any]) -> str:
    """The paper's claims about Fig. 4(b), as they come out here."""
    lines = []
    for kappa in KAPPAS:

        def row(name: str, kappa: float = kappa) -> dict[str, Any]:
            found: dict[str, Any] = results[f"{kappa:g} | {name}"]
            return found

        lines.append(f"κ = {kappa:g}   {row('V = 0.01')['regime']}")
        for name in SCHEDULERS:
            r = row(name)
            end, early = np.array(r["use_of_budget_end"]), np.array(r["use_of_budget_30"])
            size, over = np.mean(r["devices_per_round_mean"]), np.mean(r["devices_over_budget"])
            lines.append(
                f"   {name:<15} use of all budgets: round 30 {early.mean():7.2%} ± {early.std(ddof=1):.2%}, "
                f"round 200 {end.mean():7.2%} ± {end.std(ddof=1):.2%};  {size:5.1f} devices a round; "
                f"over budget {over:5.1f} devices, worst {max(r['worst_device_use']):.1%}"
            )
        base = max(np.mean(row(n)["use_of_budget_30"]) for n in ("round robin", "myopic"))
        for name in ("V = 0.01", "V = 0.1"):
            more = np.mean(row(name)["use_of_budget_30"]) > base
            lines.append(
                f"   claim: {name} uses more energy than both baselines in the first 30 rounds: {verdict(more)}"
            )
        within = max(row("V = 0.01")["use_of_budget_end"]) <= 1
        lines.append(f"   claim: V = 0.01 ends within the (total) budget: {verdict(within)}")
        same = abs(np.mean(row("V = 0.01")["use_of_budget_end"]) - np.mean(row("myopic")["use_of_budget_end"])) < 0.02
        lines.append(
            f"   claim: V = 0.01 uses as much energy as myopic (within 2 % of the budget): {verdict(bool(same))}"
        )
        lines.append(f"   {row('V = 0.01')['proposition2_seed0']}")
    return "\n".join(lines)


def verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def draw(results: dict[str, Any], folder: Path) -> None:
    styles = {
        "V = 0.01": ("#00539b", "-"),
        "V = 0.1": ("#c84e00", "-"),
        "dual, V = 0.01": ("#00a0c8", "--"),
        "round robin": ("#555555", "-."),
        "myopic": ("#909090", ":"),
    }
    figure = new_figure("This study", figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, len(KAPPAS), sharey=True)
    rounds = np.arange(1, ROUNDS + 1)
    for axis, kappa in zip(axes, KAPPAS, strict=True):
        axis.axhline(1, color="#bbbbbb", linewidth=1)
        for name, (colour, line) in styles.items():
            r = results[f"{kappa:g} | {name}"]
            mean, deviation = np.array(r["curve_mean"]), np.array(r["curve_sd"])
            axis.plot(rounds, mean, line, color=colour, label=name, linewidth=1.8)
            axis.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(f"κ = {kappa:g}", fontsize=11)
        axis.set_xlabel("round")
        plain_axes(axis)
    axes[0].set_ylabel("energy used / energy budget, whole fleet")
    axes[0].text(2, 1.01, "budget for 200 rounds", fontsize=8, color="#777777", va="bottom")
    axes[0].legend(frameon=False, fontsize=9, loc="center left")
    for ending in ("svg", "png"):
        save(figure, folder / f"energy-curves.{ending}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    results = measure(options.seeds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "energy-curves.json").write_text(json.dumps(results) + "\n")
    draw(results, options.out)
    print(claims(results))


if __name__ == "__main__":
    main()
