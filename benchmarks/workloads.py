"""The two workloads of the speed benchmarks.

    W1    100 devices with 600 training and 100 test samples, MLP 784-512-256-64-10
    W2    100 devices with 500 training and 100 test samples of 3×32×32, the paper's CNN

Each round 10 devices take 5 full-batch steps with momentum. Data is MNIST and CIFAR-10 where they are installed
(`kfl data`), two classes per device, and made-up images of the same sizes where not.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn

from kfl.core.errors import KflError
from kfl.core.randomness import stream, torch_seed
from kfl.data import Dataset, load_dataset, partition
from kfl.engine import LocalData, Sgd
from kfl.models import FleetModels, SplitModel, cnn, fleet_from_name, mlp

CLASSES, FEATURES = 10, 64
LAMBDA, RATE, MOMENTUM, STEPS = 1 / 32, 0.05, 0.9, 5
DEVICES, CHOSEN = 100, 10
SIZES = {"W1": (60_000, 10_000), "W2": (50_000, 10_000)}
SHAPES = {"W1": (1, 28, 28), "W2": (3, 32, 32)}
NAMES = {"W1": ("mnist", "mlp", 256), "W2": ("cifar10", "cnn", 128)}
SGD = Sgd(STEPS, RATE, RATE, MOMENTUM)


@functools.cache
def workload_dataset(workload: str) -> Dataset:
    """The real images, or made-up ones."""
    try:
        return load_dataset(NAMES[workload][0])
    except KflError:
        return made_up(workload)


def made_up(workload: str, seed: int = 0) -> Dataset:
    """Images that can be learnt: a blurred pattern for each class with noise, bytes as real ones are."""
    draw = torch.Generator().manual_seed(torch_seed(seed, "benchmark images"))
    channels, height, width = SHAPES[workload]
    patterns = torch.rand(CLASSES, channels, height // 4, width // 4, generator=draw)
    patterns = nn.functional.interpolate(patterns, size=(height, width), mode="bilinear")
    sets = []
    for size in SIZES[workload]:
        labels = torch.randint(0, CLASSES, (size,), generator=draw)
        values = torch.empty(size, channels, height, width, dtype=torch.uint8)
        for part in torch.arange(size).split(5_000):
            noise = torch.randn(len(part), channels, height, width, generator=draw)
            mixed = patterns[labels[part]] + 0.3 * noise
            if workload == "W1":  # strokes on black, as digits are
                mixed = (mixed - 0.6).clamp(min=0) * 2
            values[part] = (mixed * 255).clamp(0, 255).to(torch.uint8)
        sets.append((values.numpy(), labels.numpy()))
    (train_x, train_y), (test_x, test_y) = sets
    mean, std = (None, None) if workload == "W1" else ((0.5,) * 3, (0.25,) * 3)
    return Dataset("made up", train_x, train_y, test_x, test_y, CLASSES, 1 / 255, mean, std)


def workload_data(workload: str, devices: int = DEVICES, seed: int = 0) -> LocalData:
    """Every device's samples: two shards of one class each."""
    data = workload_dataset(workload)
    return LocalData(data, partition("shards", data.train_y, data.test_y, CLASSES, devices, seed))


def workload_models(workload: str, devices: int = DEVICES, seed: int = 0) -> FleetModels:
    """Equal networks for all devices."""
    _, model, width = NAMES[workload]
    return fleet_from_name(model, (width,), devices, SHAPES[workload], CLASSES, seed)


def new_model(workload: str, seed: int, device: int | None) -> SplitModel:
    """A device's starting model as kfl draws it by name; None for the start that all have in common."""
    address = () if device is None else (device,)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(torch_seed(seed, "initial model", *address))
        return mlp(SHAPES["W1"]) if workload == "W1" else cnn(SHAPES["W2"])


def schedule(rounds: int, devices: int = DEVICES, chosen: int = CHOSEN, seed: int = 0) -> list[list[int]]:
    """Who trains in each round."""
    drawn = [stream(seed, "benchmark", t).permutation(devices)[:chosen] for t in range(rounds)]
    return [np.sort(some).tolist() for some in drawn]
