"""CPU against GPU, and a GPU against itself: how far apart, and whether twice is the same.

    python -m studies.determinism_gpu [--runs "kfl, ResNets" …]

Plays the same short runs on both, on made-up images, and compares: who took part and what it cost in energy must be
the same to 1e-9; accuracy may differ by 1 point, knowledge and weights after five rounds by 1 % of the largest value
(float32 adds in another order, and every round builds on the last). Deep networks with norm layers are compared in
float64: a channel that is dead for all samples is divided by almost nothing, and rounding grows a hundredfold in each
layer. Then the GPU run again, with and without `deterministic`: bit for bit the same or not, and what it costs. Then
every run stopped half way and resumed, which must be bit for bit the run that was not. Needs a GPU.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import kfl
from benchmarks.workloads import made_up
from kfl.algorithms import ALGORITHMS
from kfl.core.errors import StoppedError
from kfl.data.untrusted import read_npz
from kfl.runfolder import RunReader

POINTS, RELATIVE, ENERGY = 0.01, 0.01, 1e-9
"""Stated tolerances: accuracy (share), values relative to the largest, energies relative."""
ROUNDS = 5


def experiments() -> dict[str, tuple[str, kfl.Experiment]]:
    base = kfl.Experiment(devices=20, distinct_classes=False, rounds=ROUNDS, scheduler=kfl.Uniform(count=5))
    equal = replace(base, widths=(256,))
    own = replace(base, radio="none", rounds=3, algorithm=kfl.Kfl(batch_size=50, local_steps=1))
    return {
        "kfl, MLPs": ("W1", base),
        "kfl, CNNs": ("W2", replace(base, widths=(128, 256))),
        "kfl, batches": ("W1", replace(base, algorithm=kfl.Kfl(batch_size=50))),
        "kfl, ResNets": ("W2", replace(own, model="resnet8-8,resnet8-16")),
        "kfl, others": ("W2", replace(own, model="mobilenet-8,transformer-32")),
        "fedavg": ("W1", replace(equal, algorithm=ALGORITHMS["fedavg"]())),
        "fedrep": ("W1", replace(equal, algorithm=ALGORITHMS["fedrep"]())),
        "apfl": ("W1", replace(equal, algorithm=ALGORITHMS["apfl"]())),
        "fedkd": ("W1", replace(base, algorithm=ALGORITHMS["fedkd"]())),
    }


@functools.cache
def images(workload: str) -> kfl.Dataset:
    """Some of the made-up images: 200 for each device, and 50 to test it."""
    whole = made_up(workload)
    return replace(
        whole,
        train_x=whole.train_x[:4000],
        train_y=whole.train_y[:4000],
        test_x=whole.test_x[:1000],
        test_y=whole.test_y[:1000],
    )


def play(
    workload: str,
    experiment: kfl.Experiment,
    folder: Path,
    device: str,
    deterministic: bool = False,
    precision: str = "float32",
) -> float:
    started = time.perf_counter()
    data = images(workload)
    kfl.run(experiment, folder, dataset=data, device=device, deterministic=deterministic, precision=precision)
    return time.perf_counter() - started


def in_halves(workload: str, experiment: kfl.Experiment, folder: Path) -> None:
    """Stopped after two rounds, then resumed."""
    seen: list[int] = []
    try:
        kfl.run(
            experiment,
            folder,
            dataset=images(workload),
            device="cuda",
            deterministic=True,
            on_round=lambda log: seen.append(log.round),
            should_stop=lambda: len(seen) >= 1,
        )
    except StoppedError:
        play(workload, experiment, folder, "cuda", deterministic=True)


def far(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference, relative to the largest value of its array."""
    gaps = [0.0]
    for name, value in one.items():
        mine, theirs = value.astype(np.float64), other[name].astype(np.float64)
        gaps.append(float(np.abs(mine - theirs).max(initial=0)) / max(float(np.abs(mine).max(initial=0)), 1e-12))
    return max(gaps)


def arrays(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The server's arrays, and all devices' weights, of a finished run."""
    server = read_npz((folder / "server.npz").read_bytes())
    weights: dict[str, np.ndarray] = {}
    for device in range(20):
        state = RunReader(folder).model(device) or {}
        weights |= {f"{device}/{name}": value.float().numpy() for name, value in state.items()}
    return server, weights


def compare(name: str, cpu: Path, gpu: Path) -> bool:
    mine, theirs = kfl.load_run(cpu)[1], kfl.load_run(gpu)[1]
    same = all(a.devices == b.devices for a, b in zip(mine.rounds, theirs.rounds, strict=True))
    energy = abs(mine.energy_j - theirs.energy_j) / max(mine.energy_j, 1e-300)
    points = abs(mine.accuracy - theirs.accuracy)
    server, weights = (far(a, b) for a, b in zip(arrays(cpu), arrays(gpu), strict=True))
    fine = same and energy <= ENERGY and points <= POINTS and server <= RELATIVE and weights <= RELATIVE
    print(
        f"{name:<14}{'same' if same else 'OTHER':>8}{energy:>10.1e}{100 * points:>10.2f}{server:>11.1e}{weights:>11.1e}"
        f"{'within' if fine else 'OUTSIDE':>10}"
    )
    return fine


def bits(folder: Path) -> list[bytes]:
    names = [
        "rounds.jsonl",
        "server.npz",
        *sorted(str(p.relative_to(folder)) for p in (folder / "models").iterdir()),
    ]
    return [(folder / name).read_bytes() for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=list(experiments()), help="some of the runs (default: all)")
    named = parser.parse_args().runs
    chosen = {name: found for name, found in experiments().items() if named is None or name in named}
    if not torch.cuda.is_available():
        print("This compares a CPU with a GPU, and there is no GPU here.", file=sys.stderr)
        return 2
    fine = True
    print(f"{'run':<14}{'devices':>8}{'energy':>10}{'points':>10}{'server':>11}{'weights':>11}{'':>10}")
    with tempfile.TemporaryDirectory() as base:
        for number, (name, (workload, experiment)) in enumerate(chosen.items()):
            cpu, gpu = Path(base) / f"cpu-{number}", Path(base) / f"gpu-{number}"
            precision = "float32" if experiment.model == "auto" else "float64"
            play(workload, experiment, cpu, "cpu", precision=precision)
            play(workload, experiment, gpu, "cuda", precision=precision)
            fine &= compare(name, cpu, gpu)
        print(f"\n{'run':<14}{'as it is':>12}{'deterministic':>16}{'slower by':>12}")
        for number, (name, (workload, experiment)) in enumerate(chosen.items()):
            twice = {}
            for wanted in (False, True):
                folders = [Path(base) / f"{number}-{wanted}-{turn}" for turn in range(2)]
                times = [play(workload, experiment, folder, "cuda", wanted) for folder in folders]
                twice[wanted] = bits(folders[0]) == bits(folders[1]), min(times)
            fine &= twice[True][0]
            words = {same: "same" if same else "differs" for same in (True, False)}
            slower = 100 * (twice[True][1] / twice[False][1] - 1)
            print(f"{name:<14}{words[twice[False][0]]:>12}{words[twice[True][0]]:>16}{slower:>+10.0f} %")
        print(f"\n{'run':<14}{'resumed':>12}")
        for number, (name, (workload, experiment)) in enumerate(chosen.items()):
            whole, halves = Path(base) / f"{number}-True-0", Path(base) / f"{number}-halves"
            in_halves(workload, experiment, halves)
            same = bits(whole) == bits(halves)
            fine &= same
            print(f"{name:<14}{'same' if same else 'DIFFERS':>12}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
