"""The workloads of `benchmarks.own_networks`: networks that are not the paper's, in mini-batches.

    sensor    9 channels × 128 time steps, 6 classes, the 1-D convolutional network in widths 32 and 64
    resnet    3×32×32, 10 classes, ResNet-8 in widths 8 and 16
    four      the same images, four architectures: resnet8-8, resnet8-16, mobilenet-16, cnn-128

100 devices with 500 training and 100 test samples each. Ten devices a round take two passes in mini-batches of 50 on
KFL's loss, report the mean feature of each class, and are tested. Data is made up, by seed, and can be learnt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate
from torch.utils.flop_counter import FlopCounterMode

from kfl.algorithms import Kfl
from kfl.core.randomness import stream, torch_seed
from kfl.data import Dataset, LocalData, partition
from kfl.models import FleetModels, fleet_from_name

ALGORITHM = Kfl(local_steps=2, batch_size=50)


@dataclass(frozen=True)
class Workload:
    """A fleet with networks of its own."""

    name: str
    shape: tuple[int, ...]
    classes: int
    models: str
    """As `--model` takes them."""
    devices: int = 100
    chosen: int = 10
    train: int = 500
    """Training samples of each device."""
    test: int = 100

    def data(self, seed: int = 0) -> LocalData:
        """Every device's samples, dealt out evenly."""
        train, test = self.train * self.devices, self.test * self.devices
        made = _signals if len(self.shape) == 2 else _images
        dataset = made(self.shape, self.classes, train, test, seed)
        split = partition("iid", dataset.train_y, dataset.test_y, self.classes, self.devices, seed)
        return LocalData(dataset, split)

    def fleet(self, seed: int = 0) -> FleetModels:
        """The architecture of every device, drawn from the list."""
        return fleet_from_name(self.models, None, self.devices, self.shape, self.classes, seed)

    def schedule(self, rounds: int, seed: int = 0) -> list[list[int]]:
        """Who trains in each round: everybody once, in a random order, before anybody a second time."""
        found: list[list[int]] = []
        for lap in range(-(-rounds * self.chosen // self.devices)):
            order = stream(seed, "benchmark", lap).permutation(self.devices)
            found += [np.sort(some).tolist() for some in order.reshape(-1, self.chosen)]
        return found[:rounds]

    def smaller(self, devices: int, samples: int) -> Workload:
        """The same with fewer devices and samples, to try something out."""
        return replace(self, devices=devices, chosen=min(self.chosen, devices), train=samples, test=samples // 5)


IMAGES = (3, 32, 32)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("sensor", (9, 128), 6, "sensor-32,sensor-64"),
        Workload("resnet", IMAGES, 10, "resnet8-8,resnet8-16"),
        Workload("four", IMAGES, 10, "resnet8-8,resnet8-16,mobilenet-16,cnn-128"),
    )
}


def _images(shape: tuple[int, ...], classes: int, train: int, test: int, seed: int) -> Dataset:
    """A blurred pattern for each class with noise, bytes as real images are."""
    draw = torch.Generator().manual_seed(torch_seed(seed, "benchmark images"))
    channels, height, width = shape
    patterns = torch.rand(classes, channels, height // 4, width // 4, generator=draw)
    patterns = interpolate(patterns, size=(height, width), mode="bilinear")

    def some(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        labels = torch.randint(0, classes, (count,), generator=draw)
        values = torch.empty(count, *shape, dtype=torch.uint8)
        for part in torch.arange(count).split(5_000):
            noise = torch.randn(len(part), *shape, generator=draw)
            values[part] = ((patterns[labels[part]] + 0.3 * noise) * 255).clamp(0, 255).to(torch.uint8)
        return values.numpy(), labels.numpy()

    numbers = {"scale": 1 / 255, "mean": (0.5,) * channels, "std": (0.25,) * channels}
    return Dataset.from_arrays(*some(train), *some(test), name="made up", classes=classes, **numbers)  # type: ignore[arg-type]  # by name


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


def round_flops(workload: Workload, models: FleetModels, chosen: list[int]) -> float:
    """Products of one round by the plain method, as PyTorch's own counter counts them: training, means and tests."""
    total = 0.0
    for index in {int(models.architecture[k]) for k in chosen}:
        module = models.builders[index]()
        x = torch.zeros(2, *workload.shape)
        with FlopCounterMode(display=False) as step:
            module(x).sum().backward()
        with FlopCounterMode(display=False) as read, torch.no_grad():
            module(x)
        passes = ALGORITHM.local_steps * workload.train * step.get_total_flops()
        reads = (workload.train + workload.test) * read.get_total_flops()
        total += sum(models.architecture[chosen] == index) * (passes + reads) / len(x)
    return total
