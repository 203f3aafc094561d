"""How long a page of `kfl report` takes to make, and how large it is.

    python -m benchmarks.report

Run folders are written by the same writer as a real run's, with made-up rounds: 200 rounds of 100 devices, of 1,000
and of 10,000, a tenth of the fleet in each round, with faults, refused uploads and knowledge of ten classes. The time
is that of reading the folder and writing the page in a process that has imported kfl; the median of five.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import kfl
from kfl.report import build_report
from kfl.runfolder import History, RoundLog, RunFolder, Snapshot, kept_rounds, totals
from kfl.scheduling import Status, Uniform

REASON = "its means has the shape (320,), not (10, 64)"


def made_up_run(folder: Path, devices: int, rounds: int, chosen: int, seed: int = 0) -> Path:
    """A finished run folder with numbers that look like a run's."""
    draw = np.random.default_rng(seed)
    experiment = kfl.Experiment(devices=devices, rounds=rounds, scheduler=Uniform(count=chosen), seed=seed)
    target = RunFolder(folder)
    with target.locked():
        target.prepare(experiment)
        target.write_environment({"dataset": {"name": "mnist-5k", "note": ""}, "repeatable": "yes"})
        skill, knowledge = draw.beta(8, 2, devices), draw.normal(size=(10, 64))
        logs = []
        for number in range(rounds):
            log = made_up_round(draw, number, devices, chosen, rounds)
            target.append(log)
            logs.append(log)
            knowledge = knowledge + draw.normal(size=(10, 64)) / (number + 1)
            if number in kept_rounds(rounds):
                grown = skill * (1 - 0.6 * np.exp(-6 * number / rounds))
                target.append_snapshot(Snapshot(number, knowledge, np.ones(10, dtype=bool), grown))
        records = [{"device": device, "accuracy": float(skill[device])} for device in range(devices)]
        summary = {"accuracy": logs[-1].accuracy, "rounds": rounds, "wall_s": 1.0, **totals(logs)}
        target.finish(History(tuple(logs), summary, tuple(records)), {"knowledge": torch.zeros(10, 64)})
    return folder


def made_up_round(draw: np.random.Generator, number: int, devices: int, chosen: int, rounds: int) -> RoundLog:
    """One round in which some uploads are late and some refused."""
    who = np.sort(draw.choice(devices, chosen, replace=False))
    late, refused = who[draw.random(chosen) < 0.02], who[draw.random(chosen) < 0.01]
    return RoundLog(
        round=number,
        accuracy=float(0.95 - 0.6 * np.exp(-8 * number / rounds) + draw.normal(0, 0.002)),
        devices=tuple(who.tolist()),
        share=tuple(draw.dirichlet(np.ones(chosen)).tolist()),
        power_w=tuple((10 ** draw.uniform(-6, -2, chosen)).tolist()),
        compute_energy_j=tuple(draw.uniform(0.3, 0.9, chosen).tolist()),
        upload_energy_j=tuple((10 ** draw.uniform(-8, -3, chosen)).tolist()),
        time_s=1.0,
        bits_up=20480.0 * chosen,
        bits_down=20480.0 * chosen,
        objective=None,
        lower_bound=None,
        status=Status(),
        lost=tuple(late.tolist()),
        rejected=tuple({"device": int(device), "reason": REASON} for device in refused),
        faults=tuple({"device": int(device), "fault": "late"} for device in late),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(f"{'rounds':>8}{'devices':>10}{'seconds':>10}{'MB':>8}")
    with tempfile.TemporaryDirectory() as base:
        for rounds, devices in ((200, 100), (200, 1_000), (200, 10_000)):
            folder = made_up_run(Path(base) / f"{rounds}x{devices}", devices, rounds, devices // 10)
            took = []
            for _ in range(repeats):
                started = time.perf_counter()
                page = build_report([folder])
                took.append(time.perf_counter() - started)
            print(f"{rounds:>8}{devices:>10,}{statistics.median(took):>10.2f}{page.stat().st_size / 1e6:>8.2f}")


if __name__ == "__main__":
    main()
