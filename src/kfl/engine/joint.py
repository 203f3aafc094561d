"""Several runs in one batch: each has a seat at a table, and what all of them ask for is computed at once.

Runs of the same shape (one dataset, the same architectures; another seed, so another split and other starting models)
play their own loops, each in a thread of its own, and call their seat as they would call any engine. A call that
computes waits until every run that still plays has called. Then the devices of all runs are trained, read or tested
as one cohort of a `StackedEngine`, and each run gets the answers to its own call.

    one at a time   A thread has the turn from the moment it takes part until it waits or leaves. So nothing of
                    PyTorch's global state (random numbers, threads, gradients) is shared by two at once.
    in step         If runs ask for different things, one thing is done and the others wait on; training waits longest,
                    so that runs that fell out of step, because one tests and another does not, meet there again.
    one fails       If a batch fails, its calls are made one by one, and only those that fail alone have failed.

Calls on data that belong to one run (what models say about its proxy samples, distillation on them) take their turn
one after another.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import Any

import numpy as np
from torch import Tensor

from kfl.core.errors import KflError
from kfl.engine.base import DeviceProfile, Engine, RoundKey, Sgd
from kfl.engine.joint_calls import Call, ClassMeans, Correct, Logits, Train
from kfl.engine.joint_fleet import join_data, join_models
from kfl.engine.local_data import LocalData
from kfl.engine.objectives import Objective
from kfl.engine.one_thread import OneThread
from kfl.engine.plan import Precision
from kfl.engine.stacked import StackedEngine
from kfl.models import FleetModels, State


class ClosedError(KflError):
    """The table was closed while a run still played."""


class JointEngine:
    """A table with so many seats, numbered from 0. Every seat must be taken, by `playing`, or left.

    >>> import numpy as np
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from kfl.data import Dataset, partition
    >>> from kfl.engine import Supervised
    >>> from kfl.models import fleet_from_name
    >>> data = Dataset.from_arrays(np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 2)
    >>> def play(seed):
    ...     split = partition("iid", data.train_y, data.test_y, classes=2, devices=3, seed=seed)
    ...     models = fleet_from_name("mlp", (8,), 3, (6,), 2, seed=seed)
    ...     with table.playing(seed):
    ...         engine = table.sit(seed, LocalData(data, split), models)
    ...         states = [engine.initial(device, seed) for device in range(3)]
    ...         return len(engine.train(range(3), states, Supervised(), Sgd(5, 0.05, 0.05, 0.9), RoundKey(seed, 0)))
    >>> table = JointEngine(2, "cpu")
    >>> with ThreadPoolExecutor(2) as threads:
    ...     print(list(threads.map(play, [0, 1])), table.batches)
    [3, 3] {1: 0, 2: 1}
    """

    def __init__(self, seats: int, device: str, precision: Precision = "float32", **options: Any) -> None:
        """`options` are those of `StackedEngine`."""
        self.seats = seats
        self.batches = dict.fromkeys(range(1, seats + 1), 0)
        """How many batches had the calls of so many runs."""
        self._turn = Condition()
        self._setting = (device, precision, options)
        self._playing = set(range(seats))
        self._seated: dict[int, Seat] = {}
        self._waiting: dict[int, Call] = {}
        self._engine: StackedEngine | None = None
        self._first: dict[int, int] = {}
        self._hand: OneThread | None = None
        self._closed = False

    @contextmanager
    def playing(self, seat: int) -> Iterator[None]:
        """Take part while the block runs: nobody else has the turn but while the block waits at the table."""
        with self._turn:
            try:
                yield
            finally:
                self.leave(seat)

    def leave(self, seat: int) -> None:
        """A run ends, however it does: the others no longer wait for it."""
        with self._turn:
            self._playing.discard(seat)
            self._waiting.pop(seat, None)
            self._serve()
            if not self._playing and self._hand is not None:
                self._hand.end()

    def close(self) -> None:
        """End all: from the next call on, whoever asks gets a `ClosedError`. The batch in progress is finished."""
        self._closed = True  # without waiting for the turn

    def sit(self, seat: int, data: LocalData, models: FleetModels) -> Seat:
        """The engine of one run, with that run's own data and models."""
        device, precision, options = self._setting
        with self._turn:
            own = StackedEngine(data, models, device, precision, **options)
            self._seated[seat] = Seat(self, seat, own, data, models)
            self._engine = None  # made anew from all seats when it is first needed
            return self._seated[seat]

    def ask(self, seat: int, call: Call) -> Any:
        """Wait until everybody has called, and for the answer."""
        with self._turn:
            self._waiting[seat] = call
            self._serve()
            self._turn.wait_for(lambda: call.answered)
            return call.result()

    def _serve(self) -> None:
        """Answer the calls that are next, if everybody who plays has called."""
        if self._closed:
            for call in self._waiting.values():
                call.fail(ClosedError("The runs were told to end at once."))
            self._waiting.clear()
            self._turn.notify_all()
        if not self._waiting or self._waiting.keys() != self._playing:
            return
        kind = min(call.kind for call in self._waiting.values())
        seats = sorted(seat for seat, call in self._waiting.items() if call.kind == kind)
        calls = [(seat, self._waiting.pop(seat)) for seat in seats]
        if self._hand is None:
            self._hand = OneThread()
        self._hand.do(partial(self._answer, calls))
        self._turn.notify_all()

    def _answer(self, calls: Sequence[tuple[int, Call]]) -> None:
        groups: dict[Hashable, list[tuple[int, Call]]] = {}
        for seat, call in calls:
            groups.setdefault(call.batch, []).append((seat, call))
        for group in groups.values():
            if not self._attempt(group):
                for one in group:
                    self._attempt([one])

    def _attempt(self, group: Sequence[tuple[int, Call]]) -> bool:
        """Answer calls in one batch. If it fails, several are left unanswered; one is told why."""
        calls = [call for _, call in group]
        try:
            engine = self._joined()
            answers = type(calls[0]).together(engine, calls, [self._first[seat] for seat, _ in group])
            for call, answer in zip(calls, answers, strict=True):
                call.answer(answer)
        except BaseException as problem:  # whatever it is, it is the affair of the run that asked
            if len(calls) == 1:
                calls[0].fail(problem)
                return True
            logging.getLogger("kfl").warning(
                "What %d runs asked for failed as one batch and is done one by one: %s", len(calls), problem
            )
            return False
        self.batches[len(calls)] += 1
        return True

    def _joined(self) -> StackedEngine:
        """One engine for the devices of all seats, those of a seat one after another."""
        if self._engine is None:
            device, precision, options = self._setting
            seats = sorted(self._seated)
            runs = [self._seated[seat] for seat in seats]
            ends = np.cumsum([run.data.partition.devices for run in runs]).tolist()
            self._first = dict(zip(seats, [0, *ends[:-1]], strict=True))
            data, models = join_data([run.data for run in runs]), join_models([run.models for run in runs])
            self._engine = StackedEngine(data, models, device, precision, **options)
        return self._engine


class Seat(Engine):
    """The engine of one run at the table. What computes, waits for the others; the rest is the run's own."""

    def __init__(
        self, table: JointEngine, number: int, own: StackedEngine, data: LocalData, models: FleetModels
    ) -> None:
        self.data, self.models = data, models
        self.own = own
        """The run's own engine, for all that needs no computing."""
        self.plan = replace(own.plan, together=table.seats)
        self.classes, self.features = own.classes, own.features
        self._table, self._number = table, number

    def place(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Bring a message to where this engine computes."""
        return self.own.place(arrays)

    def profile(self, device: int) -> DeviceProfile:
        """The sizes of a device's model and data."""
        return self.own.profile(device)

    def initial(self, device: int, seed: int, *, common: bool = False) -> State:
        """A device's model before its first round."""
        return self.own.initial(device, seed, common=common)

    def proxy(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the run's own proxy samples."""
        return self.own.proxy()

    def test_samples(self, device: int) -> int:
        """Number of test samples of a device."""
        return self.own.test_samples(device)

    def train(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        objective: Objective,
        sgd: Sgd,
        key: RoundKey,
        data: tuple[Tensor, Tensor] | None = None,
    ) -> list[State]:
        """Equations (7) and (8), τ times, with the devices of the other runs."""
        if not devices:
            return []
        found: list[State] = self._table.ask(self._number, Train(devices, states, objective, sgd, key, data))
        return found

    def class_means(
        self, devices: Sequence[int], states: Sequence[State], clip_norm: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Equation (4), with the devices of the other runs."""
        if not devices:
            return self.own.class_means(devices, states, clip_norm)
        found: tuple[Tensor, Tensor] = self._table.ask(self._number, ClassMeans(devices, states, clip_norm))
        return found

    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """What each model says about the same inputs: after those of the other runs, whose inputs are others."""
        if not devices:
            return self.own.logits(devices, states, inputs)
        found: Tensor = self._table.ask(self._number, Logits(devices, states, inputs))
        return found

    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Right predictions on each device's own test samples, with the devices of the other runs."""
        if not devices:
            return []
        found: list[int] = self._table.ask(self._number, Correct(devices, states))
        return found
