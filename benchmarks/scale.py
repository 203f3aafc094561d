"""Memory and time of a round as a fleet grows from a hundred devices to a million: `python -m benchmarks.scale`.

Devices hold 20 samples each, drawn with overlap from 5,000 digits, and the same run is played with ever more of them,
each size in a process of its own, run folder, checkpoints and logs included; at most 100 devices are tested.

    common    common knowledge without a radio: a tenth of the fleet reports in each round
    dual      the same in a cell, whose scheduler `dual` decides who does
    stem      a shared stem under small convolutional networks: a thousand devices, or all, train in each round

    python -m benchmarks.scale --sizes 100,1000,10000 --ways common,dual --out docs/results/scale
    python -m benchmarks.scale --fleet 100000 --samples 50    # every device reports, every device is tested, once

Writes `scale.json`, `scale.txt` and `scale.png` at `--out`. Sizes that are in `scale.json` and are not measured again
stay in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kfl.algorithms import CommonKnowledge, SharedStem
from kfl.experiment import Experiment
from kfl.runner import run
from kfl.scheduling import Dual, Uniform

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
SAMPLES, TESTED, TRAINED, ROUNDS = 20, 100, 1_000, 4
LABELS = {
    "common": "common knowledge, a tenth of the fleet a round, no radio",
    "dual": "common knowledge, a cell and `dual`",
    "stem": "shared stem, 1,000 devices a round, no radio",
}

Found = dict[str, Any]


def experiment_of(way: str, devices: int) -> Experiment:
    """The run that is measured.

    Args:
        way: One of `LABELS`.
        devices: The size of the fleet.
    """
    shared = Experiment(
        devices=devices,
        rounds=ROUNDS,
        split="overlap",
        samples_per_device=SAMPLES,
        tested_devices=min(TESTED, devices),
        radio="none",
    )
    if way == "stem":
        algorithm = SharedStem(local_steps=1)
        count = Uniform(count=min(TRAINED, devices))
        return replace(shared, algorithm=algorithm, model="cnn", widths=(32,), scheduler=count)
    common = replace(shared, algorithm=CommonKnowledge(), scheduler=Uniform(count=max(1, devices // 10)))
    return common if way == "common" else replace(common, radio="nb-iot", scheduler=Dual())


def fleet_of(devices: int, samples: int, tested: int | None = None) -> Experiment:
    """A fleet of which all devices report in one of two rounds, and all or some are tested at the end.

    Args:
        devices: The size of the fleet.
        samples: Of each device.
        tested: How many devices are tested; None for all.
    """
    half = Uniform(count=-(-devices // 2))
    shared = replace(experiment_of("common", devices), samples_per_device=samples, tested_devices=tested)
    return replace(shared, rounds=2, evaluate_every=2, scheduler=half)


def measure(experiment: Experiment) -> Found:
    """Play a run into a folder: seconds and processor seconds of a round, and the peak of memory."""
    stamps, began = [(time.perf_counter(), time.process_time())], time.perf_counter()
    with TemporaryDirectory() as folder:
        history = run(
            experiment,
            folder,
            on_round=lambda _: stamps.append((time.perf_counter(), time.process_time())),
            progress=False,
        )
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    rounds = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(stamps)][1:]
    return {
        "devices": experiment.devices,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "round_s": statistics.median(wall for wall, _ in rounds),
        "round_cpu_s": statistics.median(cpu for _, cpu in rounds),
        "first_s": stamps[1][0] - began,
        "whole_s": time.perf_counter() - began,
        "whole_cpu_s": time.process_time(),
        "folder_mb": size / 2**20,
        "reports": sum(len(log.devices) for log in history.rounds),
        "accuracy": history.accuracy,
    }


def in_a_process(*arguments: str) -> Found:
    """Measure in a process of its own, whose peak of memory is that of this run."""
    command = [sys.executable, "-m", "benchmarks.scale", *arguments]
    found: Found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def described(way: str, found: list[Found]) -> list[str]:
    """The rows of one way as text: absolute numbers, and what each step of the size multiplies them by."""
    head = ("devices", "s/round", "CPU s/round", "devices/round", "peak MB", "KB/device", "folder MB", "time ×")
    lines = [LABELS[way], " ".join(f"{word:>13}" for word in head)]
    before: Found | None = None
    for now in found:
        more = (now["peak_mb"] - found[0]["peak_mb"]) * 1024 / now["devices"]
        growth = "" if before is None else f"{now['round_cpu_s'] / max(before['round_cpu_s'], 1e-9):.1f}"
        values = (
            f"{now['devices']:,}",
            f"{now['round_s']:.3f}",
            f"{now['round_cpu_s']:.3f}",
            f"{now['reports'] / ROUNDS:,.0f}",
            f"{now['peak_mb']:,.0f}",
            f"{more:.2f}",
            f"{now['folder_mb']:.1f}",
            growth,
        )
        lines.append(" ".join(f"{value:>13}" for value in values))
        before = now
    return lines


def draw(measured: dict[str, list[Found]], path: Path) -> None:
    """The growth of time and memory, with a line that is proportional to the number of devices."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name, title in zip(
        figure.subplots(1, 2), ("round_cpu_s", "peak_mb"), ("CPU seconds a round", "peak memory, MB"), strict=True
    ):
        for way, found in measured.items():
            axes.loglog([one["devices"] for one in found], [one[name] for one in found], "o-", label=LABELS[way])
        last = max((one for found in measured.values() for one in found), key=lambda one: (one["devices"], one[name]))
        sizes = [100, last["devices"]]
        axes.loglog(sizes, [last[name] * size / last["devices"] for size in sizes], ":", color="gray", label="linear")
        axes.set(title=title, xlabel="devices", ylim=(min(one[name] for f in measured.values() for one in f) / 2, None))
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--ways", default=",".join(LABELS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "DEVICES"), help="measure in this process")
    parser.add_argument("--fleet", type=int, help="play one whole fleet of this size")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each device of that fleet")
    parser.add_argument("--tested", type=int, help="how many of its devices are tested; all by default")
    options = parser.parse_args()
    if options.one or options.fleet:
        asked = experiment_of(options.one[0], int(options.one[1])) if options.one else None
        print(json.dumps(measure(asked or fleet_of(options.fleet, options.samples, options.tested))))
        return
    stored = options.out / "scale.json" if options.out else None
    measured: dict[str, list[Found]] = json.loads(stored.read_text()) if stored and stored.exists() else {}
    for way in options.ways.split(","):
        for size in map(int, options.sizes.split(",")):
            found = in_a_process("--one", way, str(size))
            kept = [one for one in measured.get(way, []) if one["devices"] != size]
            measured[way] = sorted([*kept, found], key=lambda one: one["devices"])
            print(f"{way:7} {described(way, [found])[-1]}", flush=True)
            if stored:
                stored.parent.mkdir(parents=True, exist_ok=True)
                stored.write_text(json.dumps(measured, indent=1) + "\n")
    text = "\n".join(line for way, found in measured.items() for line in ("", *described(way, found)))
    print(text)
    if options.out:
        (options.out / "scale.txt").write_text(f"python -m benchmarks.scale --out {options.out}\n{text}\n")
        draw(measured, options.out / "scale.png")


if __name__ == "__main__":
    main()
