"""Engine for GPUs: many devices' models as one batch.

Devices of one architecture, or of one up to the widths of hidden layers, form a cohort whose parameters are
stacked. What runs for a cohort is one of three things:

    fused       networks of known layers and objectives in closed form: the hand-written network (`kfl.engine.cuda`)
    torch.func  any other objective or module: `vmap` over stacked parameters
    sequential  modules that PyTorch cannot vectorize: one device after another, by an `AutogradEngine`

On a GPU the first two are recorded as CUDA graphs, one per shape. Data goes there once, and nothing waits for the
GPU between the start of a round and the first use of its results. Where a cohort does not fit into memory, it is
halved. What was chosen, and why, is in `StackedEngine.choices`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from kfl.core.errors import ConfigError
from kfl.data import LocalData
from kfl.engine.autograd import AutogradEngine
from kfl.engine.base import ClassStatistics, Engine, Outputs, RoundKey, Sgd
from kfl.engine.cohort_work import Cohort, CohortWork
from kfl.engine.cohorts import Families, Family
from kfl.engine.descent import batches_per_pass
from kfl.engine.objectives import Objective
from kfl.engine.plan import Plan, Precision
from kfl.engine.samples import Split
from kfl.engine.vectorized import takes_weights
from kfl.models import FleetModels, State

LANES = 4
"""Cohorts that a GPU works on at the same time."""
WIDEST_RATIO = 2
"""A cohort's largest number of samples is at most this times its smallest: the rest is another cohort."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Choices:
    """What a stacked engine chose by itself, beyond its plan, and why."""

    graphs: bool
    """Whether repeated shapes are recorded as CUDA graphs."""
    graphs_recorded: int
    graphs_problem: str
    """Why a computation could not be recorded; empty where all could."""
    families: dict[str, str]
    """For each family of architectures that was used, what runs for it."""
    objectives: dict[str, str]
    """For each kind of objective that was trained, how: handwritten, or by torch.func."""
    most_devices: dict[str, int]
    """For each family, the largest cohort that fits into memory, where that was found out."""


class StackedEngine(Engine):
    """Trains, reads and evaluates devices as batches.

    >>> import numpy as np
    >>> from kfl.data import Dataset, partition
    >>> from kfl.engine import Supervised
    >>> from kfl.models import fleet_from_name
    >>> data = Dataset.from_arrays(np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 2)
    >>> split = partition("iid", data.train_y, data.test_y, classes=2, devices=3, seed=0)
    >>> models = fleet_from_name("mlp", (8, 16), 3, data.input_shape, 2, seed=0)
    >>> engine = StackedEngine(LocalData(data, split), models, "cpu")
    >>> states = [engine.initial(device, seed=0) for device in range(3)]
    >>> trained = engine.train(range(3), states, Supervised(), Sgd(5, 0.05, 0.05, 0.9), RoundKey(0, 0))
    >>> engine.class_statistics(range(3), trained).means.shape
    torch.Size([3, 2, 64])
    """

    def __init__(
        self,
        data: LocalData,
        models: FleetModels,
        device: str,
        precision: Precision = "float32",
        *,
        convolution: str = "auto",
        graphs: bool = True,
        fused: bool = True,
        plan: Plan | None = None,
    ) -> None:
        """`convolution`, `graphs` and `fused` are for comparisons; the defaults are what is fastest."""
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device", device, "cpu: PyTorch finds no GPU on this machine")
        plan = plan or Plan(device="cuda" if device == "cuda" else "cpu", precision=precision)
        super().__init__(data, models, plan, torch.device(device))
        self._one = AutogradEngine(data, models, replace(plan, compiler=""), device)
        """For what cannot share a batch."""
        self._families = Families(data, models, self._arithmetic, self._where)
        self._work = CohortWork(
            data, self._arithmetic, self._where, convolution=convolution, graphs=graphs, fused=fused
        )
        self._most: dict[str, int] = {}
        self._lanes = Lanes(self._where)

    @property
    def choices(self) -> Choices:
        """What was chosen so far, and why."""
        families = self._families.built()
        return Choices(
            graphs=self._work.graphs.enabled,
            graphs_recorded=self._work.graphs.recorded,
            graphs_problem=self._work.graphs.problem,
            families={family.name: self._work.kind(family) for family in families},
            objectives=dict(self._work.objectives),
            most_devices=dict(self._most),
        )

    def train(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        objective: Objective,
        sgd: Sgd,
        key: RoundKey,
        data: tuple[Tensor, Tensor] | None = None,
    ) -> list[State]:
        """Equations (7) and (8), τ times, for whole cohorts: w ← w − η ∇, with momentum."""
        objectives = [objective.for_device(index) for index in range(len(devices))]

        def work(cohort: Cohort, indices: Sequence[int]) -> list[State]:
            own = [objectives[index] for index in indices]
            trained = self._work.train(cohort, own, sgd, key, data) if cohort.family.verdict.vectorized else None
            if trained is not None:
                return trained
            return [
                self._one.train([device], [state], objective, sgd, key, data)[0]
                for device, state, objective in zip(cohort.devices, cohort.states, own, strict=True)
            ]

        kinds = {type(objective) for objective in objectives}
        weighable = all(takes_weights(kind) for kind in kinds)
        counts = [self._data.size(device, "train") if data is None else len(data[1]) for device in devices]

        def apart(index: int, family: Family) -> Hashable:
            if not (weighable and family.verdict.separable):
                return counts[index]
            # In handwritten kernels, all devices of a cohort take equally many steps, of which a graph is made.
            return batches_per_pass(counts[index], sgd) if family.network is not None else 0

        exact = not all(kind.outputs_only for kind in kinds)
        return self._in_cohorts(devices, states, counts, work, apart, exact=exact)

    def class_statistics(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        of: Outputs = "features",
        *,
        scatter: bool = False,
        clip_norm: float | None = None,
    ) -> ClassStatistics:
        """Equation (4): Ω_{k,c} is the mean of h_k(x) over the device's samples of class c."""

        def work(cohort: Cohort, indices: Sequence[int]) -> list[ClassStatistics]:
            if cohort.family.verdict.vectorized:
                return list(self._work.class_statistics(cohort, of, scatter=scatter, clip_norm=clip_norm))
            own = cohort.devices, cohort.states
            return list(self._one.class_statistics(*own, of, scatter=scatter, clip_norm=clip_norm))

        found = self._read_cohorts(devices, states, "train", work)
        if not found:
            return self._one.class_statistics([], [], of, scatter=scatter)
        return ClassStatistics.stacked(found)

    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs."""

        def work(cohort: Cohort, indices: Sequence[int]) -> list[Tensor]:
            if cohort.family.verdict.vectorized:
                return list(self._work.logits(cohort, inputs).unbind(0))
            return list(self._one.logits(cohort.devices, cohort.states, inputs).unbind(0))

        found = self._in_cohorts(devices, states, [1] * len(devices), work, lambda index, family: 0)
        return torch.stack(found) if found else self._one.logits([], [], inputs)

    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Number of correct predictions on each device's own test samples."""

        def work(cohort: Cohort, indices: Sequence[int]) -> list[Tensor]:
            if cohort.family.verdict.vectorized:
                return list(self._work.correct(cohort).unbind(0))
            right = self._one.correct(cohort.devices, cohort.states)
            return list(torch.tensor(right, device=self._where).unbind(0))

        tested = [index for index, device in enumerate(devices) if self._data.size(device, "test")]
        found = [0] * len(devices)
        if tested:
            right = self._read_cohorts(
                [devices[index] for index in tested], [states[index] for index in tested], "test", work
            )
            for index, count in zip(tested, torch.stack(right).tolist(), strict=True):
                found[index] = count
        return found

    def _read_cohorts(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        split: Split,
        work: Callable[[Cohort, Sequence[int]], list[Result]],
    ) -> list[Result]:
        """Work on each device's own samples in evaluation mode."""
        counts = [self._data.size(device, split) for device in devices]

        def apart(index: int, family: Family) -> Hashable:
            return 0 if family.verdict.separable_reading else counts[index]

        return self._in_cohorts(devices, states, counts, work, apart)

    def _in_cohorts(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        counts: Sequence[int],
        work: Callable[[Cohort, Sequence[int]], list[Result]],
        apart: Callable[[int, Family], Hashable],
        *,
        exact: bool = False,
    ) -> list[Result]:
        """Split devices into cohorts, do the work of each, and give the results back in the devices' order."""
        groups: dict[Hashable, list[int]] = {}
        families: dict[Hashable, Family] = {}
        for index, (device, _) in enumerate(zip(devices, states, strict=True)):
            family = self._families.of(device, exact=exact)
            key: Hashable = (id(family), apart(index, family))
            families[key] = family
            groups.setdefault(key, []).append(index)
        # Each family has a lane, the same in every round: graphs belong to one.
        lanes = {id(family): number for number, family in enumerate(self._families.built())}
        found: dict[int, Result] = {}
        self._lanes.fork()
        for key, members in groups.items():
            family = families[key]
            with self._lanes.lane(lanes[id(family)]), self._arithmetic.products():
                for indices in _of_like_size(members, counts):
                    ordered = sorted(indices, key=lambda index: self._families.architecture(devices[index]))
                    found.update(self._fitting(family, ordered, devices, states, work))
        self._lanes.join()
        return [found[index] for index in range(len(devices))]

    def _fitting(
        self,
        family: Family,
        indices: list[int],
        devices: Sequence[int],
        states: Sequence[State],
        work: Callable[[Cohort, Sequence[int]], list[Result]],
    ) -> dict[int, Result]:
        """The work of a cohort, halved as often as memory asks for it."""
        most = self._most.get(family.name, len(indices))
        if len(indices) <= most:
            cohort = Cohort(family, [devices[index] for index in indices], [states[index] for index in indices])
            try:
                return dict(zip(indices, work(cohort, indices), strict=True))
            except (torch.OutOfMemoryError, RuntimeError) as problem:
                if len(indices) == 1 or not is_out_of_memory(problem):
                    raise
                most = (len(indices) + 1) // 2
            # Outside the handler, whose traceback would keep the memory of what failed.
            self._most[family.name] = most
            self._work.free()
            logging.getLogger("kfl").warning(
                "%d devices of %s do not fit into memory as one batch; going on with %d at a time.",
                len(indices),
                family.name,
                most,
            )
        found: dict[int, Result] = {}
        for start in range(0, len(indices), most):
            found.update(self._fitting(family, indices[start : start + most], devices, states, work))
        return found


class Lanes:
    """Streams of a GPU for cohorts that need not wait for each other; on a CPU, nothing.

    Every lane begins after all that was asked for before `fork`, and what follows `join` waits for all lanes. So memory
    that one stream gave back is never written by another that has not waited for it. The first lane is where
    everything else runs.
    """

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._start: torch.cuda.Event | None = None
        self._used: set[int] = set()

    def fork(self) -> None:
        """Let lanes begin."""
        if self._where.type == "cuda":
            self._start = torch.cuda.current_stream(self._where).record_event()

    @contextmanager
    def lane(self, number: int) -> Iterator[None]:
        """Work in one of the lanes."""
        number %= LANES
        if number == 0 or self._start is None:
            yield
            return
        if number not in self._streams:
            self._streams[number] = torch.cuda.Stream(self._where)
        stream = self._streams[number]
        if number not in self._used:
            stream.wait_event(self._start)
            self._used.add(number)
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        """Let what follows wait for all lanes."""
        for number in self._used:
            torch.cuda.current_stream(self._where).wait_stream(self._streams[number])
        self._used.clear()


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an error means that memory was too small, on a GPU or on a CPU."""
    text = str(problem)
    return isinstance(problem, torch.OutOfMemoryError) or "can't allocate memory" in text or "out of memory" in text


def _of_like_size(indices: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """Split devices so that filling up at most doubles the samples of any of them."""
    found: list[list[int]] = []
    for index in sorted(indices, key=lambda index: (-counts[index], index)):
        if not found or counts[index] * WIDEST_RATIO < counts[found[-1][0]]:
            found.append([])
        found[-1].append(index)
    return found
