"""The dual scheduler's time, memory and certified gap for 1,000 to 1,000,000 devices.

    python -m benchmarks.dual [--seconds-limit 2] [--ratio-limit 2] [--largest 1000000]

Each row is a process of its own, so that the peak memory is that size's. Four kinds of rounds: "paper" is the
paper's cell with its band (scarce from about 10,000 devices on), "wide" gives every device 5 kHz, so that nearly
all take part and every step works on the whole fleet, "half" 600 Hz, so that about half of them do, and "early"
is a round with all queues empty, a knapsack. "gap/device" is the gap over the smallest device's worth, V γ D.

At the largest size the same rounds are decided for whole devices too: "circuits" has a modem that draws power and a
fixed clock, "clock" a free clock as well, "modem" is the preset paper-mnist-modem with its power limits. The last
column is their processor time over the printed model's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np

from kfl.core.randomness import stream
from kfl.scheduling import Dual, Observation, SchedulerState
from kfl.scheduling.accounts import Accounts, RoundInputs, observe
from kfl.wireless import PRESETS, Cell

ROUND, HORIZON = 20, 200
SIZES = (1_000, 10_000, 100_000, 1_000_000)

_MODEM = replace(PRESETS["paper-mnist"], circuit_power_w=1.4, amplifier_efficiency=0.21)
MODELS = {
    "printed": PRESETS["paper-mnist"],
    "circuits": _MODEM,
    "clock": replace(_MODEM, min_cpu_hz=0.2e9, static_power_w=0.08),
    "modem": PRESETS["paper-mnist-modem"],
}


def round_of(
    devices: int, kind: str, model: str = "printed", seed: int = 0
) -> tuple[Dual, SchedulerState, Observation]:
    """One round of the paper's MNIST cell in the middle of a run."""
    draw = stream(seed, "benchmark")
    samples = draw.integers(300, 900, devices).astype(float)
    cell = Cell.build(MODELS[model], devices, seed)
    link = cell.link_state(ROUND, 5 * 550_346 * samples, 640 * 32)
    scheduler = Dual(v=0.1, gamma="constant")
    budget_j = cell.budget_j(HORIZON)
    state = scheduler.init(budget_j, HORIZON)
    hz_per_device = {"wide": 5e3, "half": 600.0}.get(kind)
    if kind != "early":
        queue = np.where(draw.random(devices) < 0.2, 0.0, draw.exponential(20.0, devices))
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
    scheduler.decide(*round_of(100, kind, model)[1:])  # import and warm up
    uplink = observation.uplink
    assert uplink is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, cpu = [], []
    for _ in range(3 if devices > 100_000 else 10):
        fresh = replace(observation, uplink=replace(uplink))  # a curve is made for every round
        start, cpu_start = time.perf_counter(), time.process_time()
        decision = scheduler.decide(state, fresh)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    one = 0.1 * float(observation.samples.min())  # V γ D of the smallest device: the strictest unit
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "seconds": float(np.median(seconds)),
                "cpu_seconds": float(np.median(cpu)),
                "peak_mb": peak / 1024,
                "before_mb": before / 1024,
                "chosen": int(decision.chosen.sum()),
                "objective": decision.objective,
                "gap": decision.gap,
                "gap_devices": decision.gap / one,
            }
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", nargs=3, metavar=("DEVICES", "KIND", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--seconds-limit", type=float, default=2.0, help="for the printed model")
    parser.add_argument("--ratio-limit", type=float, default=2.0, help="for whole devices over the printed model")
    options = parser.parse_args()
    if options.measure:
        measure(int(options.measure[0]), *options.measure[1:])
        return 0
    print(
        f"{'round':8}{'model':10}{'devices':>10}{'chosen':>9}{'seconds':>10}{'cpu':>8}{'peak MB':>9}"
        f"{'objective':>14}{'gap':>11}{'gap/device':>12}{'ratio':>8}"
    )
    slowest, dearest = 0.0, 0.0
    sizes = [size for size in SIZES if size <= options.largest]
    for kind in ("paper", "wide", "half", "early"):
        times, printed_s = [], 0.0
        for model, devices in [("printed", size) for size in sizes] + [(model, sizes[-1]) for model in MODELS][1:]:
            command = [sys.executable, "-m", "benchmarks.dual", "--measure", str(devices), kind, model]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            if model == "printed":
                times.append(row["seconds"])
                printed_s, ratio = row["cpu_seconds"], ""
            else:
                dearest = max(dearest, row["cpu_seconds"] / printed_s)
                ratio = f"{row['cpu_seconds'] / printed_s:.2f}"
            print(
                f"{kind:8}{model:10}{devices:>10,}{row['chosen']:>9,}{row['seconds']:>10.4f}{row['cpu_seconds']:>8.3f}"
                f"{row['peak_mb']:>9.0f}{row['objective']:>14.6g}{row['gap']:>11.2g}{row['gap_devices']:>12.2g}{ratio:>8}",
                flush=True,
            )
        slowest = max(slowest, times[-1])
        slope = np.polyfit(np.log(sizes), np.log(times), 1)[0] if len(sizes) > 1 else float("nan")
        print(f"{'':8}time of the printed model grows as devices^{slope:.2f}")
    print(f"whole devices take at most {dearest:.2f} times as long as the printed model")
    return int(slowest > options.seconds_limit or dearest > options.ratio_limit)


if __name__ == "__main__":
    sys.exit(main())
