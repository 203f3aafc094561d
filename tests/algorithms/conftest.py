"""A tiny world that every test of the algorithms shares: four classes, five devices, uneven and few samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import nn

from kfl.algorithms import Algorithm, Rejection, Upload
from kfl.data import Dataset, Partition
from kfl.engine import Engine, LocalData, RoundKey
from kfl.engine.autograd import AutogradEngine
from kfl.models import FleetModels, SplitModel, State, inspect_model

torch.set_num_threads(1)

CLASSES, INPUTS, FEATURES = 4, 6, 5
HELD = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 3)]
"""The classes of each device. Device k has 3 + k samples of its first class and 7 − k of its second."""


@dataclass(frozen=True)
class Toy:
    dataset: Dataset
    partition: Partition
    proxy: np.ndarray
    models: FleetModels
    engine: Engine
    seed: int = 7

    def of(self, algorithm: Algorithm) -> Toy:
        """The same world with the networks that an algorithm makes of the devices' own."""
        models = algorithm.device_models(self.models)
        data = LocalData(self.dataset, self.partition, self.proxy)
        return self if models is self.models else replace(self, models=models, engine=AutogradEngine(data, models))

    def train(self, device: int) -> tuple[torch.Tensor, torch.Tensor]:
        indices = self.partition.train[device]
        return self.dataset.inputs("train", indices), self.dataset.labels("train", indices)


@dataclass
class Play:
    """A few rounds of an algorithm, with everything that went over the air."""

    server: State
    devices: dict[int, State]
    uploads: list[list[Upload]] = field(default_factory=list)
    rejections: list[list[Rejection]] = field(default_factory=list)


def tiny(width: int) -> SplitModel:
    body = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, FEATURES), nn.ReLU())
    return SplitModel(body, nn.Linear(FEATURES, CLASSES))


def stemmed(width: int) -> SplitModel:
    """A network whose first layer is the same for every width."""
    body = nn.Sequential(
        nn.Linear(INPUTS, 7), nn.ReLU(), nn.Linear(7, width), nn.ReLU(), nn.Linear(width, FEATURES), nn.ReLU()
    )
    return SplitModel(body, nn.Linear(FEATURES, CLASSES))


def normalised(width: int) -> SplitModel:
    """A network with running statistics, which are part of its state but no parameters."""
    body = nn.Sequential(
        nn.Linear(INPUTS, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, FEATURES), nn.ReLU()
    )
    return SplitModel(body, nn.Linear(FEATURES, CLASSES))


def without_biases(width: int) -> SplitModel:
    """A network whose work is in its inner layers, all of it in products."""
    sizes = (INPUTS, width, width, width)
    layers = [(nn.Linear(before, after, bias=False), nn.ReLU()) for before, after in itertools.pairwise(sizes)]
    return SplitModel(nn.Sequential(*itertools.chain(*layers)), nn.Linear(width, CLASSES, bias=False))


def build(widths: Sequence[int] = (8,), scale: float = 1.0, network: Callable[[int], SplitModel] = tiny) -> Toy:
    draw = np.random.default_rng(3)
    y = np.repeat(np.arange(CLASSES), 40)
    centres = draw.normal(size=(CLASSES, INPUTS))
    x = scale * (centres[y] + 0.5 * draw.normal(size=(len(y), INPUTS)))
    dataset = Dataset.from_arrays(x, y, x[::2], y[::2])
    proxy = np.concatenate([np.flatnonzero(y == c)[:3] for c in range(CLASSES)])
    free = {c: list(np.flatnonzero(y == c)[3:]) for c in range(CLASSES)}
    train = []
    for device, (first, second) in enumerate(HELD):
        own = [free[first].pop() for _ in range(3 + device)] + [free[second].pop() for _ in range(7 - device)]
        train.append(np.array(sorted(own)))
    test = [np.flatnonzero(np.isin(y[::2], pair)) for pair in HELD]

    def count(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
        return np.stack([np.bincount(labels[part], minlength=CLASSES) for part in parts])

    partition = Partition(tuple(train), tuple(test), count(y, train), count(y[::2], test))
    builders: tuple[Callable[[], nn.Module], ...] = tuple((lambda w=w: network(w)) for w in widths)
    models = FleetModels(
        builders=builders,
        architecture=np.arange(len(HELD)) % len(widths),
        profiles=tuple(inspect_model(network(width), (INPUTS,), CLASSES) for width in widths),
        starts=(None,) * len(widths),
        names=tuple(f"tiny-{width}" for width in widths),
    )
    engine = AutogradEngine(LocalData(dataset, partition, proxy), models)
    return Toy(dataset, partition, proxy, models, engine)


def play_rounds(algorithm: Algorithm, toy: Toy, cohorts: Sequence[Sequence[int]], seed: int | None = None) -> Play:
    """Rounds with the given cohorts; devices that never take part have no entry."""
    seed = toy.seed if seed is None else seed
    play = Play(algorithm.server_init(toy.engine, seed), {})
    for number, cohort in enumerate(cohorts):
        before = [play.devices.get(k) or algorithm.device_init(toy.engine, k, seed) for k in cohort]
        message = algorithm.broadcast(play.server)
        after, uploads = algorithm.local_update(message, cohort, before, toy.engine, RoundKey(seed, number))
        play.server, rejected = algorithm.aggregate(play.server, uploads, engine=toy.engine, key=RoundKey(seed, number))
        play.devices.update(zip(cohort, after, strict=True))
        play.uploads.append(uploads)
        play.rejections.append(rejected)
    return play


@pytest.fixture(scope="session")
def toy() -> Toy:
    """One architecture for all."""
    return build()


@pytest.fixture(scope="session")
def mixed_toy() -> Toy:
    """Three architectures that begin alike."""
    return build((8, 6, 9), network=stemmed)


@pytest.fixture(scope="session")
def normalised_toy() -> Toy:
    """One architecture for all, with batch normalization."""
    return build(network=normalised)


@pytest.fixture(scope="session")
def countable_toy() -> Toy:
    """One architecture for all, whose work PyTorch can count."""
    return build((64,), network=without_biases)


@pytest.fixture(scope="session")
def play() -> Callable[..., Play]:
    """Plays rounds: play(algorithm, toy, cohorts)."""
    return play_rounds
