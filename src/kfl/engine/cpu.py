"""The CPU engine: the paper's networks by hand, one device per core; any other by plain autograd.

Each device asks `kfl._kernels.cpu` for a trainer of its network and objective. Where there is none, and for
mini-batches, it is trained as `SequentialEngine` does, and the log says so once.

There is one single-threaded worker per core: two threads inside each matrix product of this size wait for each other,
two devices side by side do not. Workers are threads, because PyTorch and compiled kernels release the interpreter
while they compute, so nothing is copied. Each device is computed by one worker alone: results do not depend on which
one or on how many there are.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from kfl._kernels import Descent
from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.cpu import DeviceKernels, Trainer
from kfl.data import LocalData
from kfl.engine.base import Plan, RoundKey, Sgd
from kfl.engine.objectives import Objective
from kfl.engine.sequential import SequentialEngine
from kfl.models import FleetModels, Network, State

ROWS_AT_ONCE = 1024
"""Test samples of devices with one common model that are evaluated together."""

Item = TypeVar("Item")
T = TypeVar("T")
log = logging.getLogger("kfl")


class CpuEngine(SequentialEngine):
    """Trains the paper's networks on CPU cores, and anything else too."""

    def __init__(self, data: LocalData, models: FleetModels, plan: Plan) -> None:
        super().__init__(data, models, number=plan.precision, plan=plan)
        self._kernels = DeviceKernels(data, Arithmetic(plan.precision, "cpu"), gram=plan.gram)
        self._networks: dict[int, Network | None] = {}
        self._logged: set[str] = set()
        for index in np.flatnonzero([path == "cnn" for path in plan.paths]):
            if (members := np.flatnonzero(models.architecture == index)).size:
                self._network(int(members[0]))

    def train(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        objective: Objective,
        sgd: Sgd,
        key: RoundKey,
        data: tuple[Tensor, Tensor] | None = None,
    ) -> list[State]:
        """Equations (7) and (8), τ times: w ← w − η ∇, with momentum."""
        trainers = self._trainers(devices, states, objective, sgd)

        def by_hand(index: int) -> State:
            trainer, own = trainers[index], objective.for_device(index).closed_form()
            assert trainer is not None and own is not None
            return trainer(devices[index], states[index], own, data)

        def plainly(indices: list[int]) -> list[State]:
            return [self.train_one(devices[i], states[i], objective.for_device(i), sgd, key, data) for i in indices]

        return self._divided([trainer is not None for trainer in trainers], by_hand, plainly)

    def _trainers(
        self, devices: Sequence[int], states: Sequence[State], objective: Objective, sgd: Sgd
    ) -> list[Trainer | None]:
        """How each device is trained by hand; None: by plain autograd."""
        form = objective.closed_form()
        frozen = not (sgd.body_rate > 0 and sgd.head_rate > 0)
        if form is None or (form.mixture and frozen):
            self._log_once(f"The objective {type(objective).__name__}")
            form = None
        elif sgd.batch_size is not None:
            self._log_once("Mini-batches")
            form = None
        # Devices of one architecture share a trainer, those whose states have the same entries the rates.
        descents: dict[tuple[str, ...], Descent] = {}
        made: dict[tuple[Network | None, tuple[str, ...]], Trainer | None] = {}
        trainers: list[Trainer | None] = []
        for device, state in zip(devices, states, strict=True):
            if form is None or not self._is_ready(state):
                trainers.append(None)
                continue
            network, names = self._network(device), tuple(state)
            if (network, names) not in made:
                if names not in descents:
                    descents[names] = objective.descent(names, sgd)
                made[network, names] = self._kernels.trainer(network, form, names, descents[names], sgd.steps)
            trainers.append(made[network, names])
        return trainers

    def class_means(
        self, devices: Sequence[int], states: Sequence[State], clip_norm: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Equation (4): Ω_{k,c} is the mean of h_k(x) over the device's samples of class c."""
        networks = self._runnable(devices, states)

        def by_hand(index: int) -> tuple[Tensor, Tensor]:
            device, network = devices[index], networks[index]
            assert network is not None
            labels = self._data.labels(device, "train")
            feature = self._kernels.train_features(device, network, states[index]).to(self._number)
            if clip_norm is not None:
                feature = feature * (clip_norm / feature.norm(dim=1, keepdim=True)).clamp(max=1)
            count = torch.bincount(labels, minlength=self.classes)
            total = feature.new_zeros(self.classes, self.features).index_add_(0, labels, feature)
            return total / count.clamp(min=1)[:, None], count

        def plainly(indices: list[int]) -> list[tuple[Tensor, Tensor]]:
            chosen = [devices[i] for i in indices], [states[i] for i in indices]
            return list(zip(*SequentialEngine.class_means(self, *chosen, clip_norm), strict=True))

        found = self._divided([network is not None for network in networks], by_hand, plainly)
        means = [torch.zeros(0, self.classes, self.features, dtype=self._number)]
        counts = [torch.zeros(0, self.classes, dtype=torch.int64)]
        return (
            torch.cat(means + [mean[None] for mean, _ in found]),
            torch.cat(counts + [count[None] for _, count in found]),
        )

    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs."""
        networks = self._runnable(devices, states)
        # Inputs are converted once for each kind of network.
        prepared: dict[bool, Callable[[Network, State], Tensor]] = {}
        for network in networks:
            if network is not None and bool(network.convolutions) not in prepared:
                prepared[bool(network.convolutions)] = self._kernels.logits(network, inputs)

        def by_hand(index: int) -> Tensor:
            network = networks[index]
            assert network is not None
            return prepared[bool(network.convolutions)](network, states[index])

        def plainly(indices: list[int]) -> list[Tensor]:
            return list(
                SequentialEngine.logits(self, [devices[i] for i in indices], [states[i] for i in indices], inputs)
            )

        found = self._divided([network is not None for network in networks], by_hand, plainly)
        empty = torch.zeros(0, len(inputs), self.classes, dtype=self._number)
        return torch.cat([empty, *(logits[None] for logits in found)])

    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Number of correct predictions on each device's own test samples."""
        networks = self._runnable(devices, states)
        tested = [i for i, network in enumerate(networks) if network is not None and self._test_sizes[devices[i]]]
        groups = self._of_one_model(tested, devices, states)

        def by_hand(group: list[int]) -> list[int]:
            members, network = [devices[i] for i in group], networks[group[0]]
            assert network is not None
            labels = torch.cat([self._data.labels(device, "test") for device in members])
            right = self._kernels.test_logits(members, network, states[group[0]]).argmax(1) == labels
            return [int(part.sum()) for part in right.split(self._test_sizes[members].tolist())]

        found = dict.fromkeys(range(len(devices)), 0)
        for group, right in zip(groups, spread(by_hand, groups, self.plan.workers), strict=True):
            found.update(zip(group, right, strict=True))
        rest = [i for i, network in enumerate(networks) if network is None]
        if rest:
            with torch_threads(self.plan.workers):
                plain = SequentialEngine.correct(self, [devices[i] for i in rest], [states[i] for i in rest])
            found.update(zip(rest, plain, strict=True))
        return [found[index] for index in range(len(devices))]

    def _of_one_model(self, indices: list[int], devices: Sequence[int], states: Sequence[State]) -> list[list[int]]:
        """Neighbours with the very same model in one group, as in federated averaging, of so many samples."""
        groups: list[list[int]] = []
        rows = 0
        for index in indices:
            size = self._test_sizes[devices[index]]
            joins = groups and rows + size <= ROWS_AT_ONCE and _same(states[groups[-1][0]], states[index])
            if joins:
                groups[-1].append(index)
            else:
                groups.append([index])
            rows = rows + size if joins else size
        return groups

    def _divided(
        self, fast: list[bool], by_hand: Callable[[int], T], plainly: Callable[[list[int]], list[T]]
    ) -> list[T]:
        """Those by hand side by side, the others one after another; results in order."""
        chosen = [index for index, is_fast in enumerate(fast) if is_fast]
        rest = [index for index, is_fast in enumerate(fast) if not is_fast]
        found = dict(zip(chosen, spread(by_hand, chosen, self.plan.workers), strict=True))
        if rest:
            with torch_threads(self.plan.workers):
                found.update(zip(rest, plainly(rest), strict=True))
        return [found[index] for index in range(len(fast))]

    def _runnable(self, devices: Sequence[int], states: Sequence[State]) -> list[Network | None]:
        """The networks that are evaluated by hand, where a state is a whole model and nothing else."""
        found: list[Network | None] = []
        for device, state in zip(devices, states, strict=True):
            network = self._network(device)
            fits = network is not None and state.keys() == set(network.parameters) and self._is_ready(state)
            found.append(network if fits else None)
        return found

    def _is_ready(self, state: State) -> bool:
        return all(value.dtype == self._number and value.is_contiguous() for value in state.values())

    def _network(self, device: int) -> Network | None:
        """A device's network, where the plan says that it is run by hand."""
        index = int(self._models.architecture[device])
        if index not in self._networks:
            network = self._models.profiles[index].network
            by_hand = network is not None and self.plan.paths[index] != "plain" and self._kernels.compile(network)
            self._networks[index] = network if by_hand else None
        return self._networks[index]

    def _log_once(self, what: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            log.info("%s: trained by plain autograd, one device after another.", what)


def _same(one: State, other: State) -> bool:
    """Whether two states are the same tensors, not merely equal ones."""
    return one is other or (one.keys() == other.keys() and all(one[name] is other[name] for name in one))


# ── Workers ──────────────────────────────────────────────────────────────────


def spread(work: Callable[[Item], T], items: Sequence[Item], workers: int) -> list[T]:
    """`work` on every item, results in the order of the items."""
    with torch_threads(1), torch.no_grad():
        if workers == 1 or len(items) < 2:
            return [work(item) for item in items]
        return list(_pool(workers).map(functools.partial(_quietly, work), items))


def _quietly(work: Callable[[Item], T], item: Item) -> T:
    with torch.no_grad():  # gradient mode belongs to a thread
        return work(item)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Threads inside PyTorch's own operations for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "kfl-worker", initializer=_start)


def _start() -> None:
    torch.set_num_threads(1)
