"""What the clients of another simulator do: the local work of our loops, on the workloads of both."""

from __future__ import annotations

import copy
import functools
import os
import statistics
from typing import Literal

import torch
from torch import Tensor, nn

from benchmarks import loop
from benchmarks.workloads import WORKLOADS
from kfl.data import LocalData
from kfl.engine import RoundKey
from kfl.models import FleetModels

NAMES = tuple(WORKLOADS)


class Task:
    """One workload."""

    def __init__(self, name: str) -> None:
        self.name, self.own = name, WORKLOADS[name]
        self.devices, self.classes, self.features = self.own.devices, self.own.classes, 64

    @functools.cached_property
    def _data(self) -> LocalData:
        return self.own.data()

    @functools.cached_property
    def _fleet(self) -> FleetModels:
        return self.own.fleet()

    @functools.cache  # noqa: B019  # a task lives as long as its process
    def samples(self, device: int, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """A client's samples, read once."""
        return self._data.read(device, split)

    def new_model(self, device: int | None) -> nn.Module:
        """A client's starting model; None for the start that all have in common, where models are equal."""
        if device is None and self._fleet.mixed:
            raise ValueError(f"{self.name} has several architectures: there is no common model.")
        number = device or 0
        module: nn.Module = copy.deepcopy(self._fleet.builders[self._fleet.architecture[number]]())
        module.load_state_dict(self._fleet.initial(number, 0, common=device is None))
        return module

    def train(self, model: nn.Module, device: int, number: int, pull: tuple[Tensor, Tensor] | None) -> None:
        """The local steps of round `number`; `pull` is the knowledge and which classes have any."""
        x, y = self.samples(device, "train")
        algorithm = self.own.algorithm
        weighted = None if pull is None else (algorithm.knowledge_weight, *pull)
        loop.descend(model, x, y, weighted, algorithm.sgd(), RoundKey(0, number), device)

    @torch.inference_mode()
    def class_sums(self, model: nn.Module, device: int) -> tuple[Tensor, Tensor]:
        """The sum of the features of each class, and how many samples each has."""
        x, y = self.samples(device, "train")
        total = torch.zeros(self.classes, self.features)
        loop.add_features(total, model, x, y)
        return total, torch.bincount(y, minlength=self.classes).float()

    @torch.inference_mode()
    def right(self, model: nn.Module, device: int) -> int:
        """Right predictions of a client."""
        return int(loop.count_right(model, *self.samples(device, "test")))

    def schedule(self, rounds: int) -> list[list[int]]:
        """Who trains in each round."""
        return self.own.schedule(rounds)

    def tested(self, chosen: list[int]) -> list[int]:
        """Who is tested after a round: all where models are equal, otherwise those that trained."""
        return chosen if self._fleet.mixed else list(range(self.devices))


def told(seconds: list[float]) -> str:
    """Rounds per second without the first round: the median, and the quickest, which a busy machine spoils least."""
    times = seconds[1:]
    return (
        f"{1 / statistics.median(times):6.3f} rounds/s (the quickest round {1 / min(times):.3f}), "
        f"load {os.getloadavg()[0]:.1f}"
    )
