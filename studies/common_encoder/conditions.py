"""What devices hold: two image sets dealt by class, three sets dealt by person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kfl.algorithms import CommonKnowledge
from kfl.core.randomness import stream
from kfl.data import Dataset, Partition, load_dataset, partition
from kfl.data.dataset import View
from kfl.data.storage import resolve_cache_dir, resolve_data_dir
from kfl.encoders import encoded
from kfl.encoders.scattering import Scattering, coefficients, projection_for
from kfl.encoders.workers import in_pieces
from kfl.experiment import Experiment

DEVICES = 100
TESTS = 2000
"""Test images of a device, the same number of each class that it holds."""
PEOPLE = {"watch": "statistics", "spoken-digits": "log-mel", "vowel": "raw"}
"""Sets by person, and the encoder of each."""


@dataclass(frozen=True)
class Condition:
    """One setting in which all methods are compared."""

    dataset: str
    samples: int | None
    """Of a device; None for all of its part."""
    classes: int = 0
    """That a device holds; 0 for all."""
    parts: int = 1
    """Devices of one person, of different samples."""

    @property
    def name(self) -> str:
        """The word that selects it: cifar10-m5-50, watch-35."""
        words = [self.dataset, *([f"m{self.classes}"] if self.classes else [])]
        return "-".join([*words, "all" if self.samples is None else str(self.samples)])

    @property
    def by_person(self) -> bool:
        """Whether a device is a person."""
        return self.dataset in PEOPLE


CONDITIONS: dict[str, Condition] = {
    one.name: one
    for one in (
        *(Condition(data, n, m) for data in ("cifar10", "mnist") for n in (None, 50, 20) for m in (2, 5, 10)),
        *(Condition("watch", n) for n in (14, 35, 100)),
        *(Condition("spoken-digits", n, parts=parts) for n, parts in ((20, 5), (50, 5), (200, 1))),
        *(Condition("vowel", n) for n in (22, 33, 44)),
    )
}


@dataclass(frozen=True, eq=False)
class Seen:
    """A dataset through its encoder."""

    data: Dataset
    """The numbers that devices report of."""
    whole: tuple[NDArray[np.float16], NDArray[np.float16]] | None
    """All numbers of the encoder before the projection, of training and test samples; None where that is the same."""


@dataclass(frozen=True, eq=False)
class Device:
    """One device's samples."""

    x: Tensor
    y: Tensor
    tests: Tensor
    test_y: Tensor
    whole: tuple[Tensor, Tensor] | None
    """All numbers of the encoder, of both."""


def see(dataset: str) -> Seen:
    """Encode a dataset, or read what was encoded before."""
    if dataset in PEOPLE:
        return Seen(encoded(person_set(dataset), PEOPLE[dataset]), None)
    data = load_dataset(dataset)
    folder = resolve_cache_dir() / "studies"
    folder.mkdir(parents=True, exist_ok=True)
    encoder = Scattering()
    shape, whole, numbers = data.input_shape, [], []
    projection = projection_for(shape)
    for split, labels in (("train", data.train_y), ("test", data.test_y)):
        paths = [folder / f"{kind}-{dataset}-{split}.npy" for kind in ("coefficients", "numbers")]
        if not paths[1].exists():
            made = np.empty((len(labels), len(projection.mean)), np.float16)
            projected = np.empty((len(labels), encoder.size(shape)), np.float32)
            for start in range(0, len(labels), 4096):
                rows = np.arange(start, min(start + 4096, len(labels)))
                found = in_pieces(coefficients, data.unstandardized(split, rows)).numpy()  # type: ignore[arg-type]
                made[rows], projected[rows] = found, (found - projection.mean) @ projection.directions.T
            np.save(paths[0], made)
            np.save(paths[1], projected)
        whole.append(np.load(paths[0], mmap_mode="r"))
        numbers.append(np.load(paths[1], mmap_mode="r"))
    view = View("scattering", encoder.flops(shape), 0.0, whitened=True)
    seen = replace(data, train_x=numbers[0], test_x=numbers[1], scale=1.0, mean=None, std=None, view=view)
    return Seen(seen, (whole[0], whole[1]))


def person_set(name: str, data_dir: Path | None = None) -> Dataset:
    """A set by person; all its samples are training samples, as devices are dealt here."""
    with np.load(resolve_data_dir(data_dir) / "people" / f"{name}.npz") as file:
        x, labels, people = file["x"], file["y"], file["device"]
    y, person = np.unique(labels, return_inverse=True)[1], np.unique(people, return_inverse=True)[1]
    x = x.astype(np.float32) / (32768 if x.dtype == np.int16 else 1)
    names = tuple(str(one) for one in np.unique(people))
    return Dataset(name, x, y, x[:1], y[:1], int(y.max()) + 1, train_device=person, device_names=names)


def deal(condition: Condition, seed: int, seen: Seen) -> list[Device]:
    """Deal the samples to devices."""
    return _by_person(condition, seed, seen) if condition.by_person else _by_class(condition, seed, seen)


def experiment(condition: Condition, seed: int) -> Experiment:
    """The product's settings of a condition by class."""
    return Experiment(
        dataset=condition.dataset,
        devices=DEVICES,
        seed=seed,
        classes_per_device=condition.classes,
        distinct_classes=True,
        samples_per_device=condition.samples,
        algorithm=CommonKnowledge(),
        encoder="scattering",
    )


def _by_class(condition: Condition, seed: int, seen: Seen) -> list[Device]:
    """As `kfl run` deals them; tests are of all test images of a device's classes, not of its own part of them."""
    split: Partition = experiment(condition, seed).partition(seen.data)
    by_class = [np.flatnonzero(seen.data.test_y == c) for c in range(seen.data.classes)]
    found = []
    for index in range(DEVICES):
        rows = split.train[index]
        held = np.unique(seen.data.train_y[rows])
        each = TESTS // len(held)
        draw = stream(seed, "study tests", index)
        tests = np.sort(np.concatenate([draw.permutation(by_class[c])[:each] for c in held]))
        whole = None
        if seen.whole is not None:
            whole = tuple(torch.from_numpy(part[at]) for part, at in zip(seen.whole, (rows, tests), strict=True))
        x, y = (torch.from_numpy(np.array(part[rows])) for part in (seen.data.train_x, seen.data.train_y))
        test_x, test_y = (torch.from_numpy(np.array(part[tests])) for part in (seen.data.test_x, seen.data.test_y))
        found.append(Device(x, y, test_x, test_y, whole))  # type: ignore[arg-type]
    return found


def _by_person(condition: Condition, seed: int, seen: Seen) -> list[Device]:
    """A person's samples in parts, of each as many for training as asked for, about equally of each class."""
    assert condition.samples is not None and seen.data.train_device is not None
    x, y = torch.from_numpy(np.array(seen.data.train_x)), torch.from_numpy(seen.data.train_y)
    found = []
    for person in range(len(seen.data.device_names)):
        rows = stream(seed, "study person", person).permutation(np.flatnonzero(seen.data.train_device == person))
        for part in range(condition.parts):
            mine = rows[part :: condition.parts]
            labels = seen.data.train_y[mine]
            rank = np.array([np.sum(labels[:i] == c) for i, c in enumerate(labels)])
            order = mine[np.argsort(rank, kind="stable")]
            train, test = order[: condition.samples], order[condition.samples :]
            test = test[np.isin(seen.data.train_y[test], np.unique(seen.data.train_y[train]))]
            found.append(Device(x[train], y[train], x[test], y[test], None))
    return found


def as_dataset(devices: Sequence[Device], seen: Seen) -> tuple[Dataset, Partition]:
    """Devices as a dataset that the product's engine takes, each with its own samples."""
    owner = np.repeat(np.arange(len(devices)), [len(one.y) for one in devices])
    data = replace(
        seen.data,
        train_x=torch.cat([one.x for one in devices]).numpy(),
        train_y=torch.cat([one.y for one in devices]).numpy(),
        train_device=owner,
        test_device=np.zeros(1, np.int64),
        device_names=tuple(map(str, range(len(devices)))),
        test_x=seen.data.test_x[:1],
        test_y=seen.data.test_y[:1],
    )
    split = partition(
        "natural",
        data.train_y,
        data.test_y,
        data.classes,
        len(devices),
        0,
        train_device=data.train_device,
        test_device=data.test_device,
        names=data.device_names,
    )
    return data, split
