"""The CPU engine: one device per core, the paper's networks by hand, any other module by autograd.

Each device asks `kfl._kernels.cpu` for a trainer of its network and objective. Where there is none, and for
mini-batches, its worker does what `SequentialEngine` would. Each device is computed by one worker alone, with one
thread: results do not depend on which worker or on how many there are (`kfl.engine.workers`). Convolutions of any
module, whoever calls them, go through compiled loops where these are faster (`kfl._kernels.cpu.compiled_layers`).

Dropout is drawn by name (`kfl.engine.layers`). A module or an objective that draws random numbers from PyTorch's own
generator cannot share it: its devices are trained one after another, each with a seed of its own. Nobody has to say so.
A round that moved the generator is taken back and done again in that way, and so are later ones.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from kfl._kernels import Descent
from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.cpu import CompiledLayers, DeviceKernels, Trainer
from kfl.core.threads import torch_threads
from kfl.data import LocalData
from kfl.engine.base import Outputs, Path, Plan, RoundKey, Sgd
from kfl.engine.objectives import Objective
from kfl.engine.sequential import Forward, SequentialEngine, as_function, means_of
from kfl.engine.workers import few, keep_memory, spread
from kfl.models import FleetModels, Network, State, parts, tied, with_ties

ROWS_AT_ONCE = 1024
"""Test samples of devices with one common model that are evaluated together."""
PIECE_ROWS = 256
"""Samples that go through a network at once where nothing is trained."""

T = TypeVar("T")
log = logging.getLogger("kfl")


class CpuEngine(SequentialEngine):
    """Trains the paper's networks on CPU cores, and anything else too."""

    def __init__(self, data: LocalData, models: FleetModels, plan: Plan) -> None:
        super().__init__(data, models, number=plan.precision, plan=plan)
        self._kernels = DeviceKernels(data, Arithmetic(plan.precision, "cpu"), gram=plan.gram)
        self._networks: dict[int, Network | None] = {}
        self._logged: set[str] = set()
        self._drawing: set[tuple[int, type[Objective]]] = set()
        self._by_rows: dict[int, bool] = {}
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

        def plainly(index: int) -> State:
            return self.train_one(devices[index], states[index], objective.for_device(index), sgd, key, data)

        def steps(index: int) -> State:
            module, own = self._copy(devices[index]), objective.for_device(index)
            return self.descend(module, self._forward(module), devices[index], states[index], own, sgd, key, data)

        def cost(index: int) -> float:
            profile = self.profile(devices[index])
            return profile.model.flops * (profile.samples if data is None else len(data[1]))

        def beside(indices: list[int]) -> list[State]:
            """In workers, unless random numbers are drawn that others would draw too."""
            kinds = {i: (int(self._models.architecture[devices[i]]), type(objective)) for i in indices}
            quiet = [i for i in indices if kinds[i] not in self._drawing]
            self._build(devices)
            before = torch.get_rng_state()
            found = dict(zip(quiet, spread(steps, quiet, self.plan.workers, cost), strict=True))
            if not torch.equal(torch.get_rng_state(), before):
                torch.set_rng_state(before)
                found = {}
            drew = set()
            for i in indices:
                if i not in found:
                    with torch_threads(1), self.own_draws(key, devices[i]):
                        start = torch.get_rng_state()
                        found[i] = steps(i)
                        if not torch.equal(torch.get_rng_state(), start):
                            drew.add(kinds[i])
            if news := sorted({self._models.names[index] for index, _ in drew - self._drawing}):
                self._log_once(f"{few(news)} (with {type(objective).__name__}) draw random numbers", "plain")
            self._drawing |= drew
            return [found[i] for i in indices]

        return self._divided([trainer is not None for trainer in trainers], devices, by_hand, plainly, beside)

    def _trainers(
        self, devices: Sequence[int], states: Sequence[State], objective: Objective, sgd: Sgd
    ) -> list[Trainer | None]:
        """How each device is trained by hand; None: by plain autograd."""
        form = objective.closed_form()
        frozen = not (sgd.body_rate > 0 and sgd.head_rate > 0)
        if form is None or (form.mixture and frozen):
            self._log_once(f"The objective {type(objective).__name__}", self.plan.otherwise)
            form = None
        elif sgd.batch_size is not None:
            self._log_once("Mini-batches", self.plan.otherwise)
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
        self,
        devices: Sequence[int],
        states: Sequence[State],
        clip_norm: float | None = None,
        of: Outputs = "features",
    ) -> tuple[Tensor, Tensor]:
        """Equation (4): Ω_{k,c} is the mean of h_k(x) over the device's samples of class c."""
        networks = self._runnable(devices, states)

        def by_hand(index: int) -> tuple[Tensor, Tensor]:
            device, network = devices[index], networks[index]
            assert network is not None
            read = self._kernels.train_features if of == "features" else self._kernels.train_logits
            found = read(device, network, states[index]).to(self._number)
            return means_of(found, self._data.labels(device, "train"), self.classes, clip_norm)

        def plainly(index: int) -> tuple[Tensor, Tensor]:
            means, counts = SequentialEngine.class_means(self, [devices[index]], [states[index]], clip_norm, of)
            return means[0], counts[0]

        def beside(indices: list[int]) -> list[tuple[Tensor, Tensor]]:
            def read(index: int) -> tuple[Tensor, Tensor]:
                inputs, labels = self._read(devices[index], "train")
                found = self._outputs(devices[index], states[index], inputs, head=of == "logits")
                return means_of(found, labels, self.classes, clip_norm)

            self._build(devices)
            return spread(read, indices, self.plan.workers)

        found = self._divided([network is not None for network in networks], devices, by_hand, plainly, beside)
        means, counts = self._no_means(of)
        return (
            torch.cat([means, *(mean[None] for mean, _ in found)]),
            torch.cat([counts, *(count[None] for _, count in found)]),
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

        def plainly(index: int) -> Tensor:
            return SequentialEngine.logits(self, [devices[index]], [states[index]], inputs)[0]

        def beside(indices: list[int]) -> list[Tensor]:
            self._build(devices)
            converted = self._converted(inputs)
            return spread(lambda i: self._outputs(devices[i], states[i], converted), indices, self.plan.workers)

        found = self._divided([network is not None for network in networks], devices, by_hand, plainly, beside)
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
        rest = [i for i, network in enumerate(networks) if network is None and self._test_sizes[devices[i]]]

        def plainly(index: int) -> int:
            return SequentialEngine.correct(self, [devices[index]], [states[index]])[0]

        def beside(index: int) -> int:
            inputs, labels = self._read(devices[index], "test")
            return int((self._outputs(devices[index], states[index], inputs).argmax(1) == labels).sum())

        plain = [i for i in rest if self._path(devices[i]) == "plain"]
        if plain:
            with torch_threads(self.plan.workers):
                found.update({i: plainly(i) for i in plain})
        others = [i for i in rest if i not in set(plain)]
        self._build([devices[i] for i in others])
        found.update(zip(others, spread(beside, others, self.plan.workers), strict=True))
        return [found[index] for index in range(len(devices))]

    @torch.no_grad()
    def _outputs(self, device: int, state: State, inputs: Tensor, *, head: bool = True) -> Tensor:
        """Logits, or features without the head, in evaluation mode and in pieces: the memory is that of a piece."""
        module = self._copy(device)
        module.load_state_dict(with_ties(state, tied(module)))
        body, last = parts(module.eval())

        def outputs(rows: Tensor) -> Tensor:
            with self._layers():
                found: Tensor = last(body(rows)) if head else body(rows)
            return found

        if len(inputs) <= PIECE_ROWS:
            return outputs(inputs)
        index = int(self._models.architecture[device])
        if index not in self._by_rows:
            # A layer may look at the whole batch, such as a normalisation without running statistics.
            first = inputs[:4]
            together, apart = outputs(first), torch.cat([outputs(first[:2]), outputs(first[2:])])
            self._by_rows[index] = torch.allclose(together, apart, rtol=1e-3, atol=1e-4, equal_nan=True)
        if not self._by_rows[index]:
            return outputs(inputs)
        return torch.cat([outputs(rows) for rows in inputs.split(PIECE_ROWS)])

    def _forward(self, module: nn.Module) -> Forward:
        """A module as a function, its convolutions compiled where the plan says so."""
        forward = as_function(module)

        def inside(state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
            with self._layers():
                return forward(state, inputs)

        return inside if self.plan.compiled else forward

    def _layers(self) -> AbstractContextManager[object]:
        """Where convolutions of any module go through compiled loops."""
        return CompiledLayers() if self.plan.compiled else nullcontext()

    def _build(self, devices: Sequence[int]) -> None:
        """Make the modules that workers copy, and see whether they have dropout: only one thread may draw at a time."""
        keep_memory()
        for device in devices:
            self._draws(device)

    def _copy(self, device: int) -> nn.Module:
        """A module of the device's architecture that no other worker has."""
        return copy.deepcopy(self.template(device))

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
        self,
        fast: list[bool],
        devices: Sequence[int],
        by_hand: Callable[[int], T],
        plainly: Callable[[int], T],
        beside: Callable[[list[int]], list[T]],
    ) -> list[T]:
        """Those by hand side by side, then the others by autograd, as the plan says; results in order."""
        ways = ["hand" if by_hand else self._path(device) for by_hand, device in zip(fast, devices, strict=True)]
        hand, worker, plain = ([i for i, way in enumerate(ways) if way == name] for name in ("hand", "worker", "plain"))
        found = dict(zip(hand, spread(by_hand, hand, self.plan.workers), strict=True))
        if worker:
            found.update(zip(worker, beside(worker), strict=True))
        if plain:
            with torch_threads(self.plan.workers):
                found.update({index: plainly(index) for index in plain})
        return [found[index] for index in range(len(fast))]

    def _path(self, device: int) -> Path:
        """How a device is computed by autograd: in workers, or one after another with PyTorch's own threads."""
        path = self.plan.paths[int(self._models.architecture[device])]
        return path if path in ("worker", "plain") else self.plan.otherwise

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
            by_hand = (
                network is not None
                and self.plan.paths[index] not in ("plain", "worker")
                and self._kernels.compile(network)
            )
            self._networks[index] = network if by_hand else None
        return self._networks[index]

    def _log_once(self, what: str, path: Path) -> None:
        if what not in self._logged:
            self._logged.add(what)
            how = "one device per core" if path == "worker" else "one device after another"
            log.info("%s: trained by autograd, %s.", what, how)


def _same(one: State, other: State) -> bool:
    """Whether two states are the same tensors, not merely equal ones."""
    return one is other or (one.keys() == other.keys() and all(one[name] is other[name] for name in one))
