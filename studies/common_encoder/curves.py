"""What common knowledge costs and how soon it is there: over bits, devices that have reported, joules, and noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

import kfl
from kfl.algorithms import CommonKnowledge
from kfl.algorithms.gaussian import Common
from kfl.algorithms.kernel_expert import classify
from kfl.core.randomness import stream
from kfl.scheduling import Uniform
from kfl.wireless import PRESETS
from studies.common_encoder.conditions import CONDITIONS, DEVICES, Device, Seen, deal, experiment
from studies.common_encoder.heads import Reports, report

Result = dict[str, object]
TESTED = 20
"""Devices that are tested in each point, the first ones."""
COUNTS = (2, 5, 10, 20, 50, 100)
NUMBERS, MEAN_BITS, SKETCHES = (64, 128, 256), (2, 4, 8), (0, 32)
NOISES = (0.25, 0.5, 1.0, 2.0, 4.0)
CLIP = 1.15
"""Times √d: about the norm of a sample's numbers where they are white."""
FLOPS_PER_CYCLE = 16.0
"""As in the study of `docs/sharing.md`."""


def play(name: str, seed: int, seen: Seen) -> list[Result]:
    """All points of a condition."""
    devices = deal(CONDITIONS[name], seed, seen)
    found: list[Result] = [
        {"condition": name, "seed": seed, **point}
        for points in (_bits(devices, seen, seed), _order(devices, seen, seed), _noise(devices, seen, seed))
        for point in points
    ]
    return [*found, *_rounds(name, seed, seen)]


def _bits(devices: Sequence[Device], seen: Seen, seed: int) -> Iterator[Result]:
    for d in NUMBERS:
        shorter = replace(
            seen, data=replace(seen.data, train_x=seen.data.train_x[:, :d], test_x=seen.data.test_x[:, :d])
        )
        cut = [replace(one, x=one.x[:, :d], tests=one.tests[:, :d]) for one in devices]
        for bits in MEAN_BITS:
            for sketches in SKETCHES:
                algorithm = (
                    CommonKnowledge(mean_bits=bits, sketches=sketches)
                    if sketches
                    else CommonKnowledge(mean_bits=bits, covariance="none")
                )
                sent = report(algorithm, cut, shorter, seed)
                label = {"numbers": d, "mean_bits": bits, "sketches": sketches}
                yield {"curve": "bits", "bits": sent.bits, "accuracy": _accuracy(sent.common(), cut), **label}


def _order(devices: Sequence[Device], seen: Seen, seed: int) -> Iterator[Result]:
    """Devices report in the order of what each adds, or in any order, which is that of equal numbers of samples."""
    sent = report(CommonKnowledge(), devices, seen, seed)
    orders = {
        "what is missing": _by_worth(sent, devices),
        "samples": stream(seed, "study order").permutation(len(devices)).tolist(),
    }
    for worth, order in orders.items():
        for count in COUNTS:
            yield {
                "curve": "reports",
                "worth": worth,
                "reports": count,
                "accuracy": _accuracy(sent.common(order[:count]), devices),
            }


def _by_worth(sent: Reports, devices: Sequence[Device]) -> list[int]:
    """The device of most worth, then that of most worth once it has reported, and so on."""
    counts = np.stack([np.bincount(one.y.numpy(), minlength=sent.engine.classes) for one in devices])
    samples, order = counts.sum(1).astype(float), list[int]()
    known = np.zeros(counts.shape[1])
    for _ in devices:
        server = {**sent.start, "counts": torch.from_numpy(known), "reported": torch.tensor(order, dtype=torch.int64)}
        worth = sent.algorithm.worth(server, samples, counts)
        order.append(int(worth.argmax()))
        known = known + counts[order[-1]]
    return order


def _noise(devices: Sequence[Device], seen: Seen, seed: int) -> Iterator[Result]:
    clip = CLIP * seen.data.input_size**0.5
    for noise in (0.0, *NOISES):
        algorithm = CommonKnowledge(covariance="none", mean_bits=32, clip_norm=clip, noise_multiplier=noise)
        sent = report(algorithm, devices, seen, seed)
        yield {
            "curve": "noise",
            "noise": noise,
            "bits": sent.bits,
            "accuracy": _accuracy(sent.common(), devices, kernel=True),
        }


def _accuracy(common: Common, devices: Sequence[Device], *, kernel: bool = False) -> float:
    """Of the closed form of devices that have or have not reported, or of that and their kernel regression."""
    right = [
        float((classify(common, one.x, one.y, one.tests, own=True, kernel=kernel) == one.test_y).double().mean())
        for one in devices[:TESTED]
    ]
    return sum(right) / len(right)


def _rounds(name: str, seed: int, seen: Seen) -> list[Result]:
    """The product's own run: ten devices in a round, in the cell of the study of `docs/sharing.md`."""
    condition = CONDITIONS[name]
    history = kfl.run(
        replace(
            experiment(condition, seed),
            rounds=DEVICES // 10,
            scheduler=Uniform(count=10),
            radio=replace(PRESETS[f"paper-{condition.dataset}"], flops_per_cycle=FLOPS_PER_CYCLE),
            real_work=True,
            tested_devices=TESTED,
        ),
        dataset=seen.data,
    )
    energy = np.cumsum([sum(log.compute_energy_j) + sum(log.upload_energy_j) for log in history.rounds])
    return [
        {
            "condition": name,
            "seed": seed,
            "curve": "rounds",
            "round": index + 1,
            "reports": 10 * (index + 1),
            "energy_j": float(energy[index]),
            "bits": float(log.bits_up),
            "accuracy": log.accuracy,
        }
        for index, log in enumerate(history.rounds)
    ]
