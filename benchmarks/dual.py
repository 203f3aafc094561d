"""The dual scheduler's time, memory and certified gap for 10,000 to 1,000,000 devices.

    python -m benchmarks.dual [--sizes 10000 100000 1000000] [--out FILE]

Each row is a process of its own, so that the peak memory is that row's. Four kinds of rounds: "paper" is the
paper's cell with its band (scarce from about 10,000 devices on), "wide" gives every device 5 kHz, so that nearly
all take part and every step works on the whole fleet, "half" 600 Hz, so that about half of them do, and "early"
is a round with all queues empty, a knapsack. Four models of a device: "printed" is the paper's, "circuits" has a modem
that draws power and a fixed clock, "clock" a free clock as well, "modem" is the preset paper-mnist-modem with its power
limits.

"cold" is a scheduler's first round, with the compiled functions loaded; "warm" is the next round, with other gains and
queues, of a scheduler that has decided one. "cpu" is the processor time of all threads together, which says more
where a machine is shared, and "numpy" that of the same round as the first without Numba. "input MB" is the
process with its round before anything is decided, "peak MB" the most that it takes while it decides. "gap/device" is
the gap over the smallest device's worth, V γ D; "shares" is the largest relative difference of a share to NumPy's, and
"sets" how many devices only one of the two chooses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from kfl.core.randomness import stream
from kfl.scheduling import Decision, Dual, Observation, SchedulerState, dual
from kfl.scheduling._large_round import LARGE
from kfl.scheduling.accounts import Accounts, RoundInputs, observe
from kfl.wireless import PRESETS, Cell

ROUND, HORIZON = 20, 200
SIZES = (10_000, 100_000, 1_000_000)

_MODEM = replace(PRESETS["paper-mnist"], circuit_power_w=1.4, amplifier_efficiency=0.21)
MODELS = {
    "printed": PRESETS["paper-mnist"],
    "circuits": _MODEM,
    "clock": replace(_MODEM, min_cpu_hz=0.2e9, static_power_w=0.08),
    "modem": PRESETS["paper-mnist-modem"],
}


def round_of(
    devices: int, kind: str, model: str = "printed", seed: int = 0, following: int = 0
) -> tuple[Dual, SchedulerState, Observation]:
    """One round of the paper's MNIST cell in the middle of a run, or one that follows it."""
    draw = stream(seed, "benchmark")
    samples = draw.integers(300, 900, devices).astype(float)
    cell = Cell.build(MODELS[model], devices, seed)
    link = cell.link_state(ROUND + following, 5 * 550_346 * samples, 640 * 32)
    scheduler = Dual(v=0.1, gamma="constant")
    budget_j = cell.budget_j(HORIZON)
    state = scheduler.init(budget_j, HORIZON)
    hz_per_device = {"wide": 5e3, "half": 600.0}.get(kind)
    if kind != "early":
        queue = np.where(draw.random(devices) < 0.2, 0.0, draw.exponential(20.0, devices))
        moved = stream(seed, "benchmark", following).normal(0.0, 0.1, devices) * (following > 0)
        queue = np.maximum(queue + moved, 0.0)
        state = SchedulerState(state.horizon, state.allowance_j, queue)
    uplink = link.uplink
    if hz_per_device:
        uplink = replace(uplink, bandwidth_hz=hz_per_device * devices)
    accounts = replace(Accounts.start(scheduler, budget_j, HORIZON, fills=False), round=ROUND, scheduler=state)
    inputs = RoundInputs(seed, samples, np.ones(devices, dtype=bool), uplink, link.compute_energy_j)
    observation = observe(accounts, inputs, budget_j=budget_j, hard_budget=False)
    return scheduler, state, observation


def measure(devices: int, kind: str, model: str) -> None:
    """One row, as JSON on the standard output."""
    scheduler, state, observation = round_of(devices, kind, model)
    scheduler.decide(*round_of(max(LARGE, 100), kind, model)[1:])  # import, and compile where no cache has it
    input_mb = _memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    repeats = range(3 if devices > 100_000 else 15)
    decision, *_ = _timed(replace(scheduler), state, observation)
    peak_mb = _memory_mb("VmHWM")
    _, next_state, next_observation = round_of(devices, kind, model, following=1)
    cold, warm = [], []
    for _ in repeats:
        scheduler = replace(scheduler)
        cold.append(_timed(scheduler, state, observation)[1:])
        warm.append(_timed(scheduler, next_state, next_observation)[1:])
    with patch.object(dual, "is_large", lambda _: False):
        reference, _, numpy_cpu_s = _timed(scheduler, state, observation)
    one = 0.1 * float(observation.samples.min())  # V γ D of the smallest device: the strictest unit
    both = decision.chosen & reference.chosen
    shares = np.abs(decision.share[both] / np.maximum(reference.share[both], 1e-300) - 1.0)
    row = {
        "cold": np.median(cold, axis=0).tolist(),
        "warm": np.median(warm, axis=0).tolist(),
        "numpy": numpy_cpu_s,
        "input_mb": input_mb,
        "peak_mb": peak_mb,
        "chosen": int(decision.chosen.sum()),
        "gap_devices": decision.gap / one,
        "shares": float(shares.max(initial=0.0)),
        "sets": int(np.count_nonzero(decision.chosen != reference.chosen)),
    }
    print(json.dumps(row))


def _timed(scheduler: Dual, state: SchedulerState, observation: Observation) -> tuple[Decision, float, float]:
    """A decision, its seconds, and its processor time."""
    assert observation.uplink is not None
    seen = replace(observation, uplink=replace(observation.uplink))  # nothing is known of a round that comes
    start, cpu_start = time.perf_counter(), time.process_time()
    decision = scheduler.decide(state, seen)
    return decision, time.perf_counter() - start, time.process_time() - cpu_start


def _memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", nargs=3, metavar=("DEVICES", "KIND", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of devices")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    if options.measure:
        measure(int(options.measure[0]), *options.measure[1:])
        return 0
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    say(f"{cores} cores, load {load:.1f} before the first row; seconds are medians")
    say(
        f"{'devices':>9} {'round':7}{'model':9}{'chosen':>9}{'cold s':>9}{'cpu':>8}{'warm s':>9}{'cpu':>8}{'numpy':>8}"
        f"{'input MB':>10}{'peak MB':>9}{'gap/device':>12}{'shares':>9}{'sets':>6}"
    )
    worst: dict[tuple[int, str], list[float]] = {}
    for devices in options.sizes:
        for kind in ("paper", "wide", "half", "early"):
            for model in MODELS:
                command = [sys.executable, "-m", "benchmarks.dual", "--measure", str(devices), kind, model]
                row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                say(
                    f"{devices:>9,} {kind:7}{model:9}{row['chosen']:>9,}{row['cold'][0]:>9.4f}{row['cold'][1]:>8.4f}"
                    f"{row['warm'][0]:>9.4f}{row['warm'][1]:>8.4f}{row['numpy']:>8.3f}{row['input_mb']:>10.0f}{row['peak_mb']:>9.0f}{row['gap_devices']:>12.1e}"
                    f"{row['shares']:>9.0e}{row['sets']:>6}"
                )
                name = "printed" if model == "printed" else "whole"
                found = [*row["cold"], *row["warm"], row["peak_mb"] - row["input_mb"]]
                found += [row[key] for key in ("gap_devices", "shares", "sets")]
                before = worst.get((devices, name), [0.0] * len(found))
                worst[devices, name] = [max(pair) for pair in zip(found, before, strict=True)]
    for (devices, name), (cold, cpu, warm, warm_cpu, own_mb, gap, shares, sets) in worst.items():
        say(f"{devices:,} {name} devices, at most:")
        say(f"    cold {cold:.4f} s ({cpu:.4f} s of processor time), warm {warm:.4f} s ({warm_cpu:.4f} s)")
        say(f"    {own_mb:.0f} MB beyond the input, gap {gap:.1e} devices, shares {shares:.0e}, {sets:.0f} in the sets")
    if options.out:
        options.out.write_text("\n".join(["python -m benchmarks.dual", "", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
