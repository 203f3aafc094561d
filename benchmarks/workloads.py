"""The workloads of the speed benchmarks: 100 devices, ten of which train in each round.

    W1        MNIST, 600 samples a device, two classes each; the paper's MLP, five full-batch steps
    W2        CIFAR-10, 500 samples a device, two classes each; the paper's CNN, five full-batch steps
    sensor    9 channels × 128 time steps, 6 classes, the 1-D network in widths 32 and 64; two epochs of batches of 50
    resnet    3×32×32, 10 classes, ResNet-8 in widths 8 and 16; two epochs of batches of 50
    four      the same images, four architectures: resnet8-8, resnet8-16, mobilenet-16, cnn-128
    cnn       the same images, the paper's CNN; two epochs of batches of 50

MNIST and CIFAR-10 are read where they are installed (`kfl data`); otherwise images of the same sizes are generated, as
the data of the other workloads is. Generated data follows from a seed and can be learned.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate
from torch.utils.flop_counter import FlopCounterMode

from kfl.algorithms import Kfl
from kfl.core.errors import KflError
from kfl.core.randomness import stream, torch_seed
from kfl.data import Dataset, load_dataset, partition
from kfl.engine import LocalData
from kfl.models import FleetModels, fleet_from_name

FULL_BATCH, MINI_BATCHES = Kfl(), Kfl(local_steps=2, batch_size=50)
IMAGES = (3, 32, 32)


@dataclass(frozen=True)
class Workload:
    """A fleet, its data and its local work."""

    name: str
    shape: tuple[int, ...]
    classes: int
    models: str
    """As `--model` takes them."""
    algorithm: Kfl = MINI_BATCHES
    dataset: str = ""
    """Name of a dataset that is used where it is installed."""
    split: Literal["shards", "iid"] = "iid"
    devices: int = 100
    chosen: int = 10
    train: int = 500
    """Training samples of each device."""
    test: int = 100

    def data(self, seed: int = 0) -> LocalData:
        """Every device's samples."""
        dataset = _dataset(self, seed)
        return LocalData(
            dataset, partition(self.split, dataset.train_y, dataset.test_y, self.classes, self.devices, seed)
        )

    def fleet(self, seed: int = 0) -> FleetModels:
        """The architecture of every device, drawn from the list."""
        return fleet_from_name(self.models, None, self.devices, self.shape, self.classes, seed)

    def schedule(self, rounds: int, seed: int = 0) -> list[list[int]]:
        """Who trains in each round: every device once, in a random order, before any a second time."""
        found: list[list[int]] = []
        for lap in range(-(-rounds * self.chosen // self.devices)):
            order = stream(seed, "benchmark", lap).permutation(self.devices)
            found += [np.sort(some).tolist() for some in order.reshape(-1, self.chosen)]
        return found[:rounds]

    def smaller(self, devices: int, samples: int) -> Workload:
        """The same with fewer devices and samples, to try something out."""
        less = {"devices": devices, "chosen": min(self.chosen, devices), "train": samples, "test": samples // 5}
        return replace(self, **less, dataset="")  # type: ignore[arg-type]  # by name

    def flops(self, models: FleetModels, chosen: list[int]) -> float:
        """Products of one round by the plain method, as PyTorch counts them: training, class means and tests."""
        total = 0.0
        for index in {int(models.architecture[k]) for k in chosen}:
            module, x = models.builders[index](), torch.zeros(2, *self.shape)
            with FlopCounterMode(display=False) as step:
                module(x).sum().backward()
            with FlopCounterMode(display=False) as read, torch.no_grad():
                module(x)
            passes = self.algorithm.local_steps * self.train * step.get_total_flops()
            reads = (self.train + self.test) * read.get_total_flops()
            total += sum(models.architecture[chosen] == index) * (passes + reads) / len(x)
        return total


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", (1, 28, 28), 10, "mlp-256", FULL_BATCH, "mnist", "shards", train=600),
        Workload("W2", IMAGES, 10, "cnn-128", FULL_BATCH, "cifar10", "shards"),
        Workload("sensor", (9, 128), 6, "sensor-32,sensor-64"),
        Workload("resnet", IMAGES, 10, "resnet8-8,resnet8-16"),
        Workload("four", IMAGES, 10, "resnet8-8,resnet8-16,mobilenet-16,cnn-128"),
        Workload("cnn", IMAGES, 10, "cnn-128"),
    )
}


@functools.cache
def _dataset(workload: Workload, seed: int) -> Dataset:
    """The real data where it is installed, or generated data."""
    if workload.dataset:
        try:
            return load_dataset(workload.dataset)
        except KflError:
            return made_up(workload.name, seed)
    train, test = workload.train * workload.devices, workload.test * workload.devices
    make = _signals if len(workload.shape) == 2 else _images
    return make(workload.shape, workload.classes, train, test, seed)


def made_up(workload: str, seed: int = 0) -> Dataset:
    """Generated images in the place of MNIST (W1) or CIFAR-10 (W2)."""
    one = WORKLOADS[workload]
    train, test = one.train * one.devices, one.test * one.devices
    return _images(one.shape, one.classes, train, test, seed, strokes=workload == "W1")


def _images(
    shape: tuple[int, ...], classes: int, train: int, test: int, seed: int, *, strokes: bool = False
) -> Dataset:
    """A blurred pattern for each class with noise, as bytes; with `strokes`, on black as digits are."""
    draw = torch.Generator().manual_seed(torch_seed(seed, "benchmark images"))
    channels, height, width = shape
    patterns = torch.rand(classes, channels, height // 4, width // 4, generator=draw)
    patterns = interpolate(patterns, size=(height, width), mode="bilinear")

    def some(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        labels = torch.randint(0, classes, (count,), generator=draw)
        values = torch.empty(count, *shape, dtype=torch.uint8)
        for part in torch.arange(count).split(5_000):
            mixed = patterns[labels[part]] + 0.3 * torch.randn(len(part), *shape, generator=draw)
            if strokes:
                mixed = (mixed - 0.6).clamp(min=0) * 2
            values[part] = (mixed * 255).clamp(0, 255).to(torch.uint8)
        return values.numpy(), labels.numpy()

    (train_x, train_y), (test_x, test_y) = some(train), some(test)
    mean, std = (None, None) if strokes else ((0.5,) * channels, (0.25,) * channels)
    return Dataset("made up", train_x, train_y, test_x, test_y, classes, 1 / 255, mean, std)


def _signals(shape: tuple[int, ...], classes: int, train: int, test: int, seed: int) -> Dataset:
    """Waves whose frequencies and strengths in each channel belong to the class, at any phase, with noise."""
    draw = torch.Generator().manual_seed(torch_seed(seed, "benchmark signals"))
    channels, steps = shape
    frequency = 2 + 10 * torch.rand(classes, channels, 1, generator=draw)
    strength = 0.5 + torch.rand(classes, channels, 1, generator=draw)
    time = torch.linspace(0, 2 * torch.pi, steps)

    def some(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        labels = torch.randint(0, classes, (count,), generator=draw)
        values = torch.empty(count, *shape)
        for part in torch.arange(count).split(5_000):
            phase = 2 * torch.pi * torch.rand(len(part), channels, 1, generator=draw)
            wave = strength[labels[part]] * torch.sin(frequency[labels[part]] * time + phase)
            values[part] = wave + 0.5 * torch.randn(len(part), *shape, generator=draw)
        return values.numpy(), labels.numpy()

    return Dataset.from_arrays(*some(train), *some(test), name="made up", classes=classes)
