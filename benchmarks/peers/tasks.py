"""What the clients of another simulator do: the local work of our loops, on the workloads of both."""

from __future__ import annotations

import copy
import functools
import os
import statistics
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks import own_loop, workloads
from benchmarks.naive_loop import local_steps
from benchmarks.own_workloads import ALGORITHM, WORKLOADS
from kfl.engine import RoundKey

NAMES = ("W1", "W2", *WORKLOADS)


class Task:
    """One workload: W1 or W2, or one with networks that are not the paper's."""

    def __init__(self, name: str) -> None:
        self.name, self.own = name, WORKLOADS.get(name)
        self.devices = workloads.DEVICES if self.own is None else self.own.devices
        self.classes = workloads.CLASSES if self.own is None else self.own.classes
        self.features = workloads.FEATURES

    @functools.cached_property
    def _data(self) -> Any:
        return workloads.workload_data(self.name) if self.own is None else self.own.data()

    @functools.cached_property
    def _fleet(self) -> Any:
        return None if self.own is None else self.own.fleet()

    @functools.cache  # noqa: B019  # a task lives as long as its process
    def samples(self, device: int, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """A client's samples, read once."""
        found: tuple[Tensor, Tensor] = self._data.read(device, split)
        return found

    def new_model(self, device: int | None) -> nn.Module:
        """A client's starting model; None for the start that all have in common, where models are equal."""
        if self.own is None:
            return workloads.new_model(self.name, 0, device)
        if device is None:
            raise ValueError(f"{self.name} has several architectures: there is no common model.")
        module: nn.Module = copy.deepcopy(self._fleet.builders[self._fleet.architecture[device]]())
        module.load_state_dict(self._fleet.initial(device, 0))
        return module

    def train(self, model: nn.Module, device: int, number: int, pull: tuple[Tensor, Tensor] | None) -> None:
        """The local steps of round `number`; `pull` is the knowledge and which classes have any."""
        x, y = self.samples(device, "train")
        if self.own is None:
            local_steps(model, x, y, *(pull or (None, None)))  # type: ignore[arg-type]  # a SplitModel, as new_model makes
        else:
            assert pull is not None
            weighted = (ALGORITHM.knowledge_weight, *pull)
            own_loop.descend(model, x, y, weighted, ALGORITHM.sgd(), RoundKey(0, number), device)

    @torch.inference_mode()
    def class_sums(self, model: nn.Module, device: int) -> tuple[Tensor, Tensor]:
        """The sum of the features of each class, and how many samples each has."""
        x, y = self.samples(device, "train")
        total = torch.zeros(self.classes, self.features)
        own_loop.add_features(total, model, x, y)
        return total, torch.bincount(y, minlength=self.classes).float()

    @torch.inference_mode()
    def right(self, model: nn.Module, device: int) -> int:
        """Right predictions of a client."""
        return int(own_loop.count_right(model, *self.samples(device, "test")))

    def schedule(self, rounds: int) -> list[list[int]]:
        """Who trains in each round."""
        return workloads.schedule(rounds) if self.own is None else self.own.schedule(rounds)

    def tested(self, chosen: list[int]) -> list[int]:
        """Who is tested after a round: all, or with networks of one's own those that trained."""
        return list(range(self.devices)) if self.own is None else chosen


def told(seconds: list[float]) -> str:
    """Rounds per second without the first round: the median, and the quickest, which a busy machine spoils least."""
    times = seconds[1:]
    return (
        f"{1 / statistics.median(times):6.3f} rounds/s (the quickest round {1 / min(times):.3f}), "
        f"load {os.getloadavg()[0]:.1f}"
    )
