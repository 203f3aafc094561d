"""The CPU engine: the paper's networks by hand, one device per core; any other by plain autograd.

Which way a device goes depends on its architecture (`structure`), the objective (`losses`) and the steps: only full
batches are written out. Everything else is handed to `SequentialEngine`, and the log says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kfl.engine.base import DeviceProfile, Engine, RoundKey, Sgd
from kfl.engine.dense import Numbers
from kfl.engine.fast_cnn import CnnGradients, ImageSamples, compile_kernels, conv_features, train_cnn
from kfl.engine.fast_mixture import Gradients, train_mixture
from kfl.engine.fast_mlp import FlatSamples, MlpGradients, body_features, gram_pays, train_mlp
from kfl.engine.local_data import LocalData
from kfl.engine.losses import Slopes, is_known
from kfl.engine.objectives import Mixture, Objective, Supervised, mixture_names
from kfl.engine.plan import Plan
from kfl.engine.sequential import SequentialEngine
from kfl.engine.structure import ConvNet, DenseNet, recognise
from kfl.engine.workers import spread, torch_threads, workspace
from kfl.engine.workspace import BoundedCache, OwnedValue, tensor_bytes
from kfl.models import FleetModels, State

CACHE_BYTES = 320 * 2**20
"""Room for converted inputs and Gram matrices, whatever the number of devices: the paper's MNIST fleet fits."""
STARTS_BYTES = 128 * 2**20
"""Room for what the first layers of MLPs said when features were last read: again the paper's MNIST fleet."""
ROWS_AT_ONCE = 1024
"""Test samples of devices with one common model that are evaluated together."""

Samples = FlatSamples | ImageSamples
T = TypeVar("T")
log = logging.getLogger("kfl")


class CpuEngine(Engine):
    """Trains the paper's networks on CPU cores, and anything else too."""

    def __init__(self, data: LocalData, models: FleetModels, plan: Plan) -> None:
        self.plan = plan
        self.classes = data.dataset.classes
        self.features = models.features
        self._data = data
        self._models = models
        self._numbers = numbers_of(plan)
        self._plain = SequentialEngine(data, models, "cpu", str(self._numbers.exact).removeprefix("torch."))
        self._nets: dict[int, DenseNet | ConvNet | None] = {}
        self._cache = BoundedCache(CACHE_BYTES)
        self._starts = BoundedCache(STARTS_BYTES)
        table = data.byte_table() if "cnn" in plan.paths else None
        self._bytes = None if table is None else table.to(self._numbers.exact)
        self._said: set[str] = set()
        for which in np.flatnonzero([path == "cnn" for path in plan.paths]):
            if (members := np.flatnonzero(models.architecture == which)).size:
                self._net(int(members[0]))

    def place(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Bring a message to the processor that computes."""
        return self._plain.place(arrays)

    def profile(self, device: int) -> DeviceProfile:
        """The sizes of a device's model and data."""
        return self._plain.profile(device)

    def initial(self, device: int, seed: int, *, common: bool = False) -> State:
        """A device's model before its first round."""
        return self._plain.initial(device, seed, common=common)

    def proxy(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples that everybody holds."""
        return self._plain.proxy()

    def test_samples(self, device: int) -> int:
        """Number of test samples of a device."""
        return self._plain.test_samples(device)

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
        mixes = type(objective) is Mixture and sgd.body_rate > 0 and sgd.head_rate > 0
        fast = self._fast(devices, states, mixes=mixes)
        if not (is_known(objective) or mixes):
            fast = self._never(f"the objective {type(objective).__name__}", len(devices))
        elif sgd.batch_size is not None:
            fast = self._never("mini-batches", len(devices))

        def one(place: int) -> State:
            own = objective.for_device(place)
            return self._train_one(devices[place], states[place], own, sgd, data)

        def plainly(places: list[int]) -> list[State]:
            return [
                self._plain.train([devices[p]], [states[p]], objective.for_device(p), sgd, key, data)[0] for p in places
            ]

        return self._divided(fast, one, plainly)

    def class_means(
        self, devices: Sequence[int], states: Sequence[State], clip_norm: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Equation (4): Ω_{k,c} is the mean of h_k(x) over the device's samples of class c."""

        def one(place: int) -> tuple[Tensor, Tensor]:
            device = devices[place]
            labels = self._labels(device, "train")
            feature = self._train_features(device, states[place]).to(self._numbers.exact)
            if clip_norm is not None:
                feature = feature * (clip_norm / feature.norm(dim=1, keepdim=True)).clamp(max=1)
            count = torch.bincount(labels, minlength=self.classes)
            total = feature.new_zeros(self.classes, self.features).index_add_(0, labels, feature)
            return total / count.clamp(min=1)[:, None], count

        def plainly(places: list[int]) -> list[tuple[Tensor, Tensor]]:
            chosen = [devices[p] for p in places], [states[p] for p in places]
            return list(zip(*self._plain.class_means(*chosen, clip_norm), strict=True))

        found = self._divided(self._fast(devices, states), one, plainly)
        means = [torch.zeros(0, self.classes, self.features, dtype=self._numbers.exact)]
        counts = [torch.zeros(0, self.classes, dtype=torch.int64)]
        return (
            torch.cat(means + [mean[None] for mean, _ in found]),
            torch.cat(counts + [count[None] for _, count in found]),
        )

    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """What each model says about the same inputs."""
        fast = self._fast(devices, states)
        prepared: dict[type, Samples] = {}
        for device, is_fast in zip(devices, fast, strict=True):
            net = self._net(device)
            if is_fast and type(net) not in prepared:
                prepared[type(net)] = self._prepared(net, inputs.to(self._numbers.exact))

        def one(place: int) -> Tensor:
            device, state = devices[place], states[place]
            return self._logits(device, state, prepared[type(self._net(device))])

        def plainly(places: list[int]) -> list[Tensor]:
            return list(self._plain.logits([devices[p] for p in places], [states[p] for p in places], inputs))

        said = self._divided(fast, one, plainly)
        empty = torch.zeros(0, len(inputs), self.classes, dtype=self._numbers.exact)
        return torch.cat([empty, *(logits[None] for logits in said)])

    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Right predictions on each device's own test samples."""
        fast = self._fast(devices, states)
        tested = [place for place, is_fast in enumerate(fast) if is_fast and self.test_samples(devices[place])]
        runs = self._runs(tested, devices, states)

        def one(run: list[int]) -> list[int]:
            members = [devices[place] for place in run]
            labels = torch.cat([self._labels(device, "test") for device in members])
            right = self._logits(members[0], states[run[0]], self._samples(members, "test")).argmax(1) == labels
            return [int(part.sum()) for part in right.split([self.test_samples(device) for device in members])]

        found = dict.fromkeys(range(len(devices)), 0)
        for run, right in zip(runs, spread(one, runs, self.plan.workers), strict=True):
            found.update(zip(run, right, strict=True))
        slow = [place for place, is_fast in enumerate(fast) if not is_fast]
        with torch_threads(self.plan.workers):
            rest = self._plain.correct([devices[p] for p in slow], [states[p] for p in slow])
        found.update(zip(slow, rest, strict=True))
        return [found[place] for place in range(len(devices))]

    def _runs(self, places: list[int], devices: Sequence[int], states: Sequence[State]) -> list[list[int]]:
        """Neighbours with the very same model in one group, as in federated averaging, of so many samples."""
        runs: list[list[int]] = []
        rows = 0
        for place in places:
            size = self.test_samples(devices[place])
            joins = runs and rows + size <= ROWS_AT_ONCE and _same(states[runs[-1][0]], states[place])
            if joins:
                runs[-1].append(place)
            else:
                runs.append([place])
            rows = rows + size if joins else size
        return runs

    # ── which way ──
    def _divided(self, fast: list[bool], one: Callable[[int], T], plainly: Callable[[list[int]], list[T]]) -> list[T]:
        """Fast places side by side, the others one after another; results in order."""
        places = [place for place, is_fast in enumerate(fast) if is_fast]
        slow = [place for place, is_fast in enumerate(fast) if not is_fast]
        found = dict(zip(places, spread(one, places, self.plan.workers), strict=True))
        with torch_threads(self.plan.workers):
            found.update(zip(slow, plainly(slow), strict=True))
        return [found[place] for place in range(len(fast))]

    def _fast(self, devices: Sequence[int], states: Sequence[State], *, mixes: bool = False) -> list[bool]:
        """Which devices' networks are written out by hand; states must be theirs, in the numbers of the plan.

        With `mixes`, a state is a shared and a personal model and how they are mixed.
        """
        exact = self._numbers.exact
        found = []
        for device, state in zip(devices, states, strict=True):
            net = self._net(device)
            fits = net is not None and state.keys() == (mixture_names(net.parameters) if mixes else set(net.parameters))
            found.append(fits and all(value.dtype == exact and value.is_contiguous() for value in state.values()))
        return found

    def _net(self, device: int) -> DenseNet | ConvNet | None:
        which = int(self._models.architecture[device])
        if which not in self._nets:
            net = None
            if self.plan.paths[which] != "plain":
                net = recognise(self._plain.template(device), self._data.dataset.input_shape)
            if isinstance(net, ConvNet):
                compile_kernels(net, self._numbers)
            self._nets[which] = net
        return self._nets[which]

    def _never(self, why: str, count: int) -> list[bool]:
        if why not in self._said:
            self._said.add(why)
            log.info("%s: trained by plain autograd, one device after another.", why[0].upper() + why[1:])
        return [False] * count

    # ── the work of one device, in one worker ──
    def _train_one(
        self, device: int, state: State, objective: Objective, sgd: Sgd, data: tuple[Tensor, Tensor] | None
    ) -> State:
        net = self._net(device)
        if data is None:
            samples, targets = self._samples([device], "train"), self._labels(device, "train")
        else:
            samples, targets = self._prepared(net, data[0].to(self._numbers.exact)), data[1]
        if isinstance(objective, Mixture):
            return train_mixture(self._gradients(net, samples, targets), state, objective, sgd)
        memory, numbers = workspace(), self._numbers
        slopes = Slopes.of(objective, targets, self.classes, numbers.exact)
        if isinstance(net, ConvNet):
            assert isinstance(samples, ImageSamples)
            trained = train_cnn(net, state, samples, slopes, sgd, numbers, memory)
        else:
            assert isinstance(net, DenseNet) and isinstance(samples, FlatSamples)
            gram = self._gram(device if data is None else None, samples, state[f"{net.dense[0]}.bias"], sgd)
            start = self._start(device, net, state) if data is None else None
            trained = train_mlp(net, state, samples, gram, slopes, sgd, numbers, memory, start)
        return {name: trained[name] for name in state}

    def _gradients(self, net: DenseNet | ConvNet | None, samples: Samples, targets: Tensor) -> Gradients:
        """∇F of the plain loss on these samples, at any weights."""
        memory, numbers = workspace(), self._numbers
        slopes = Slopes.of(Supervised(), targets, self.classes, numbers.exact)
        if isinstance(net, ConvNet):
            assert isinstance(samples, ImageSamples)
            return CnnGradients(net, samples, slopes, numbers, memory)
        assert isinstance(net, DenseNet) and isinstance(samples, FlatSamples)
        return MlpGradients(net, samples, slopes, numbers, memory)

    def _gram(self, device: int | None, samples: FlatSamples, bias: Tensor, sgd: Sgd) -> Tensor | None:
        """X Xᵀ + 1 of a device's training samples, where it saves work."""
        count, inputs = samples.rows.shape
        pays = gram_pays(count, inputs, len(bias), sgd.steps)
        if not self.plan.gram or not pays or sgd.body_rate == 0:
            return None
        if device is None:
            return samples.gram()
        return self._cache.get((device, "gram"), samples.gram, tensor_bytes)

    def _train_features(self, device: int, state: State) -> Tensor:
        """Features of a device's own training samples. What an MLP's first layer says is where training will begin."""
        net, samples = self._net(device), self._samples([device], "train")
        # In bf16 the two are rounded differently.
        if not isinstance(net, DenseNet) or self._numbers.low != self._numbers.exact or not self.plan.gram:
            return self._features(device, state, samples)
        assert isinstance(samples, FlatSamples)
        owners = _first_layer(net, state)

        def keep(start: Tensor) -> None:
            own = OwnedValue.of(start, owners)
            if own is not None:
                self._starts.put(device, own, tensor_bytes(own.value))

        return body_features(net, state, samples, self._numbers, workspace(), keep)

    def _start(self, device: int, net: DenseNet, state: State) -> Tensor | None:
        """What the first layer says about a device's training samples, where it was read and is still true."""
        held = self._starts.find(device)
        if isinstance(held, OwnedValue) and held.belongs_to(_first_layer(net, state)):
            return held.value
        return None

    def _features(self, device: int, state: State, samples: Samples) -> Tensor:
        net = self._net(device)
        if isinstance(net, ConvNet):
            assert isinstance(samples, ImageSamples)
            return conv_features(net, state, samples, self._numbers, workspace())
        assert isinstance(net, DenseNet) and isinstance(samples, FlatSamples)
        return body_features(net, state, samples, self._numbers, workspace())

    def _logits(self, device: int, state: State, samples: Samples) -> Tensor:
        feature = self._features(device, state, samples).to(self._numbers.exact)
        return torch.addmm(state["head.bias"], feature, state["head.weight"].t())

    # ── data ──
    def _samples(self, devices: Sequence[int], split: Literal["train", "test"]) -> Samples:
        """The inputs of devices with one kind of network, as its pass wants them."""

        def make() -> Samples:
            count, shape = sum(self._data.size(device, split) for device in devices), self._data.dataset.input_shape
            if isinstance(self._net(devices[0]), ConvNet):
                images, room = ImageSamples.empty(count, shape, self._numbers)
                if self._bytes is None:
                    self._write(devices, split, room)
                else:
                    images.read(self._stored(split), self._bytes, self._indices(devices, split))
                return images
            rows = workspace().take("inputs", count, *shape, dtype=self._numbers.exact)
            self._write(devices, split, rows)
            return FlatSamples.of(rows, self._numbers)

        return self._cache.get((split, *devices), make, lambda samples: samples.size)

    def _stored(self, split: Literal["train", "test"]) -> NDArray[Any]:
        return self._data.dataset.train_x if split == "train" else self._data.dataset.test_x

    def _indices(self, devices: Sequence[int], split: Literal["train", "test"]) -> NDArray[np.int64]:
        parts = self._data.partition.train if split == "train" else self._data.partition.test
        return np.concatenate([parts[device] for device in devices]).astype(np.int64, copy=False)

    def _write(self, devices: Sequence[int], split: Literal["train", "test"], out: Tensor) -> None:
        """The inputs of devices one after another. The heap sees none of it: it would be left full of holes."""
        kind = torch.from_numpy(np.empty(0, self._data.dataset.train_x.dtype)).dtype
        for device, part in zip(devices, out.split([self._data.size(k, split) for k in devices]), strict=True):
            if part.dtype == torch.float32:
                self._data.write(device, split, part, workspace().take("stored", *part.shape, dtype=kind))
            else:  # samples are scaled in float32, whatever is computed with them
                part.copy_(self._data.read(device, split)[0])

    def _labels(self, device: int, split: Literal["train", "test"]) -> Tensor:
        parts = self._data.partition.train if split == "train" else self._data.partition.test
        return self._data.dataset.labels(split, parts[device])

    def _prepared(self, net: DenseNet | ConvNet | None, inputs: Tensor) -> Samples:
        if isinstance(net, ConvNet):
            return ImageSamples.of(inputs, self._numbers)
        return FlatSamples.of(inputs, self._numbers)


def _first_layer(net: DenseNet, state: State) -> tuple[Tensor, Tensor]:
    return state[f"{net.dense[0]}.weight"], state[f"{net.dense[0]}.bias"]


def _same(one: State, other: State) -> bool:
    """Whether two states are the same tensors, not merely equal ones."""
    return one is other or (one.keys() == other.keys() and all(one[name] is other[name] for name in one))


def numbers_of(plan: Plan) -> Numbers:
    """The types of numbers a precision stands for on a CPU."""
    exact = torch.float64 if plan.precision == "float64" else torch.float32
    return Numbers(exact, torch.bfloat16 if plan.precision == "bf16" else exact)
