"""Engine for CPU cores: one device per core, every network and every objective by autograd.

Speed comes from two exact rewrites that any network profits from: a first dense layer is trained in the space of the
samples (`sample_space`), and blocks of convolution, ReLU and pooling are one operation (`fused`). Each device is
computed by one worker alone, with one thread: results do not depend on which worker or on how many there are
(`workers`).

Dropout is drawn by name (`layers`). A module or an objective that draws random numbers from PyTorch's own generator
cannot share it: its devices are trained one after another, each with a seed of its own. This needs no declaration: a
round that moved the generator is taken back and done again in that way, and so are later ones.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kfl.core.threads import torch_threads
from kfl.data import LocalData
from kfl.engine.base import ClassStatistics, Engine, Outputs, RoundKey, Sgd
from kfl.engine.cache import BoundedCache, own_pages, tensor_bytes
from kfl.engine.descent import Batch, Bound, Network, batches, descend, layers_of_step
from kfl.engine.fused import has_blocks, rewrite
from kfl.engine.layers import draws
from kfl.engine.objectives import Objective
from kfl.engine.plan import Plan, few
from kfl.engine.sample_space import FlatSamples, SampleSpace, first_dense, gram_pays
from kfl.engine.workers import keep_memory, spread
from kfl.models import FleetModels, State

ROWS_AT_ONCE = 1024
"""Test samples of devices with one common model that a worker evaluates in a row."""
PIECE_ROWS = 256
"""Samples that go through a network at once where nothing is trained."""
CACHE_BYTES = 320 * 2**20
"""Room for prepared samples, whatever the number of devices: the paper's MNIST fleet fits."""
KEPT_NETWORKS = 8
"""Architectures whose modules a worker keeps."""
TRUSTED = ("torch.", "kfl.")
"""Packages whose layers keep nothing between calls that no state holds."""

Given = tuple[Tensor, Tensor]
Samples = FlatSamples | Tensor

log = logging.getLogger("kfl")


class AutogradEngine(Engine):
    """Trains, reads and evaluates devices side by side; with one worker, one after another.

    >>> import numpy as np
    >>> from kfl.data import Dataset, partition
    >>> from kfl.engine import Supervised
    >>> from kfl.models import fleet_from_name
    >>> data = Dataset.from_arrays(np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 2)
    >>> split = partition("iid", data.train_y, data.test_y, classes=2, devices=3, seed=0)
    >>> models = fleet_from_name("mlp", (8, 16), 3, data.input_shape, 2, seed=0)
    >>> engine = AutogradEngine(LocalData(data, split), models)
    >>> states = [engine.initial(device, seed=0) for device in range(3)]
    >>> trained = engine.train(range(3), states, Supervised(), Sgd(5, 0.05, 0.05, 0.9), RoundKey(0, 0))
    >>> engine.class_statistics(range(3), trained).means.shape
    torch.Size([3, 2, 64])
    """

    def __init__(
        self, data: LocalData, models: FleetModels, plan: Plan | None = None, where: str | torch.device = "cpu"
    ) -> None:
        """Make an engine.

        Args:
            data: Every device's samples.
            models: Every device's network.
            plan: Precision, number of workers and whether blocks are compiled; by default one worker, float32.
            where: The processor. On a GPU this engine is the fallback for networks that cannot share a batch.
        """
        super().__init__(data, models, plan or Plan(), torch.device(where))
        self._number = self._arithmetic.dtype
        self._templates: dict[int, nn.Module] = {}
        self._dropout: dict[int, bool] = {}
        self._remembers: dict[int, bool] = {}
        self._by_rows: dict[int, bool] = {}
        self._drawing: set[tuple[int, type[Objective]]] = set()
        self._cache = BoundedCache(CACHE_BYTES)
        self._mine = threading.local()
        if self.plan.compiler:
            self._compile()

    # ── Training ──

    def train(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        objective: Objective,
        sgd: Sgd,
        key: RoundKey,
        data: Given | None = None,
    ) -> list[State]:
        """Equations (7) and (8), τ times: w ← w − η ∇, with momentum."""
        self._prepare(devices)

        def work(index: int) -> State:
            return self._train_one(devices[index], states[index], objective.for_device(index), sgd, key, data)

        def cost(index: int) -> float:
            profile = self.profile(devices[index])
            return profile.model.flops * (profile.samples if data is None else len(data[1]))

        kinds = [(int(self._models.architecture[device]), type(objective)) for device in devices]
        quiet = [i for i, kind in enumerate(kinds) if kind not in self._drawing and self._where.type == "cpu"]
        before = torch.get_rng_state()
        found = dict(zip(quiet, spread(work, quiet, self.plan.workers, cost), strict=True))
        if not torch.equal(torch.get_rng_state(), before):  # one of them drew numbers that others would have drawn
            torch.set_rng_state(before)
            found = {}
        drew = set()
        for index, device in enumerate(devices):
            if index not in found:
                with torch_threads(1), own_draws(key, device):
                    start = torch.get_rng_state()
                    found[index] = work(index)
                    if not torch.equal(torch.get_rng_state(), start):
                        drew.add(kinds[index])
        if news := sorted({self._models.names[index] for index, _ in drew - self._drawing}):
            log.info(
                "%s (with %s) draw random numbers: trained one device after another.",
                few(news),
                type(objective).__name__,
            )
        self._drawing |= drew
        return [found[index] for index in range(len(devices))]

    def _train_one(
        self, device: int, state: State, objective: Objective, sgd: Sgd, key: RoundKey, data: Given | None
    ) -> State:
        """All steps of one device."""
        network = self._network(device)
        names = [name for name in state if name.rpartition("/")[2] not in network.buffers]
        rates = objective.descent(names, sgd).rates
        if not rates:
            return {name: value.clone() for name, value in state.items()}
        size = self._data.size(device, "train") if data is None else len(data[1])
        bound: Bound | None = None
        if sgd.batch_size is None or sgd.batch_size >= size:
            bound = self._in_sample_space(network, device, state, rates, objective, sgd.steps, data)
        if bound is None:
            inputs, targets = self._read(device, "train") if data is None else (self._converted(data[0]), data[1])
            bound = Bound(network, state, rates, self._arithmetic)
        else:
            targets = self._data.labels(device, "train") if data is None else data[1]
            inputs = targets  # the samples are in the bound
        seed = torch.tensor(key.torch_seed("layers", device), device=self._where) if self._draws(device) else None

        def steps() -> Iterator[Batch]:
            for number, batch in enumerate(batches(size, sgd, key, device)):
                x, y = (inputs, targets) if batch is None else (inputs[batch], targets[batch])
                yield x, y, layers_of_step(seed, number, len(y))

        return descend(bound, objective, sgd.momentum, steps())

    def _in_sample_space(
        self,
        network: Network,
        device: int,
        state: State,
        rates: Mapping[str, float],
        objective: Objective,
        steps: int,
        data: Given | None,
    ) -> SampleSpace | None:
        """The network with its first layer in the space of the samples, where it has one and that is less work."""
        if network.first is None or not SampleSpace.fits(network, rates, objective):
            return None
        samples = self._samples(network, device, "train") if data is None else self._flat(self._converted(data[0]))
        assert isinstance(samples, FlatSamples)
        count, inputs = samples.rows.shape
        if not gram_pays(count, inputs, network.first_layer.out_features, steps):
            return None
        gram = samples.gram() if data is not None else self._cache.get((device, "gram"), samples.gram, tensor_bytes)
        return SampleSpace(network, state, rates, self._arithmetic, samples, gram)

    # ── Reading ──

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
        self._prepare(devices)

        def work(index: int) -> ClassStatistics:
            device, labels = devices[index], self._data.labels(devices[index], "train").to(self._where)
            if of == "inputs":
                found = self._read(device, "train")[0].flatten(1).to(self._number)
            else:
                network = self._network(device)
                network.load(states[index], training=False)
                samples = self._samples(network, device, "train")
                found = self._outputs(network, device, samples, head=of == "logits")
            return statistics_of(found, labels, self.classes, clip_norm, scatter=scatter)

        found = spread(work, range(len(devices)), self.plan.workers)
        size = {"features": self.features, "logits": self.classes}.get(of, 0)
        return ClassStatistics.stacked(found) if found else self.no_statistics(size, scatter=scatter)

    def no_statistics(self, size: int, *, scatter: bool) -> ClassStatistics:
        """Class statistics of no device at all."""
        return ClassStatistics(
            torch.zeros(0, self.classes, size, dtype=self._number, device=self._where),
            torch.zeros(0, self.classes, dtype=torch.int64, device=self._where),
            torch.zeros(0, size, size, dtype=torch.float64, device=self._where) if scatter else None,
        )

    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs."""
        self._prepare(devices)
        inputs = self._converted(inputs)

        def work(index: int) -> Tensor:
            network = self._network(devices[index])
            network.load(states[index], training=False)
            return self._outputs(network, devices[index], inputs)

        found = spread(work, range(len(devices)), self.plan.workers)
        none = torch.zeros(0, len(inputs), self.classes, device=self._where, dtype=self._number)
        return torch.stack(found) if found else none

    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Number of correct predictions on each device's own test samples."""
        self._prepare(devices)
        groups = self._of_one_model(devices, states)

        def work(group: list[int]) -> list[int]:
            network, found = self._network(devices[group[0]]), []
            network.load(states[group[0]], training=False)
            for index in group:
                logits = self._outputs(network, devices[index], self._samples(network, devices[index], "test"))
                labels = self._data.labels(devices[index], "test").to(self._where)
                found.append(int((logits.argmax(1) == labels).sum()))
            return found

        right = dict.fromkeys(range(len(devices)), 0)
        for group, counts in zip(groups, spread(work, groups, self.plan.workers), strict=True):
            right.update(zip(group, counts, strict=True))
        return list(right.values())

    def _of_one_model(self, devices: Sequence[int], states: Sequence[State]) -> list[list[int]]:
        """Devices with test samples; neighbors with the very same model, as in federated averaging, in one group."""
        groups: list[list[int]] = []
        rows = 0
        for index, device in enumerate(devices):
            size = self._data.size(device, "test")
            if not size:
                continue
            first = groups[-1][0] if groups else None
            joins = (
                first is not None
                and rows + size <= ROWS_AT_ONCE
                and self._models.architecture[devices[first]] == self._models.architecture[device]
                and _is_same(states[first], states[index])
            )
            if joins:
                groups[-1].append(index)
            else:
                groups.append([index])
            rows = rows + size if joins else size
        return groups

    @torch.no_grad()
    def _outputs(self, network: Network, device: int, samples: Samples, *, head: bool = True) -> Tensor:
        """Logits, or features without the head, of a loaded network, in pieces: the memory is that of a piece."""

        def outputs(rows: Samples) -> Tensor:
            with self._arithmetic.autocast():
                if isinstance(rows, FlatSamples):
                    feature = network.features(rows.through(network.first_layer), after_first=True)
                else:
                    feature = network.features(rows)
                found: Tensor = network.head(feature) if head else feature
            return found.to(self._number)

        if len(samples) <= PIECE_ROWS:
            return outputs(samples)
        index = int(self._models.architecture[device])
        if index not in self._by_rows:
            # A layer may look at the whole batch, such as a normalization without running statistics.
            together, apart = outputs(samples[:4]), torch.cat([outputs(samples[:2]), outputs(samples[2:4])])
            tolerance = 0.05 if self.plan.precision == "bf16" else 1e-3
            self._by_rows[index] = torch.allclose(together, apart, rtol=tolerance, atol=1e-4, equal_nan=True)
        if not self._by_rows[index]:
            return outputs(samples)
        starts = range(0, len(samples), PIECE_ROWS)
        return torch.cat([outputs(samples[start : start + PIECE_ROWS]) for start in starts])

    # ── Samples ──

    def _samples(self, network: Network, device: int, split: str) -> Samples:
        """A device's inputs as its network takes them, kept while there is room."""
        if network.first is None:
            return self._read(device, split)[0]
        return self._cache.get(
            (device, split, "flat"),
            lambda: self._flat(self._converted(self._inputs(device, split))),
            lambda samples: samples.size,
        )

    def _flat(self, inputs: Tensor) -> FlatSamples:
        return FlatSamples.of(inputs, self._arithmetic)

    def _read(self, device: int, split: str) -> Given:
        """Inputs and labels of a device; those of networks with blocks are kept while there is room."""
        labels = self._data.labels(device, "train" if split == "train" else "test").to(self._where)
        if not self.plan.compiler or self._where.type != "cpu":
            return self._converted(self._inputs(device, split)), labels

        def read() -> Tensor:
            inputs = self._converted(self._inputs(device, split))
            return own_pages(*inputs.shape, dtype=inputs.dtype).copy_(inputs)

        return self._cache.get((device, split), read, tensor_bytes), labels

    def _inputs(self, device: int, split: str) -> Tensor:
        indices = self._data.indices(device, "train" if split == "train" else "test")
        return self._data.dataset.inputs("train" if split == "train" else "test", indices)

    # ── Modules ──

    def template(self, device: int) -> nn.Module:
        """One module per architecture is kept, which workers copy."""
        index = int(self._models.architecture[device])
        if index not in self._templates:
            with torch.random.fork_rng(devices=[]):
                self._templates[index] = copy.deepcopy(self._models.builders[index]()).to(self._where, self._number)
        return self._templates[index]

    def _prepare(self, devices: Sequence[int]) -> None:
        """Make the modules that workers copy, and see what they have: only one thread may draw at a time."""
        keep_memory()
        for device in devices:
            self._draws(device)

    def _network(self, device: int) -> Network:
        """A network of the device's architecture that no other worker has."""
        index = int(self._models.architecture[device])
        if index not in self._remembers:
            self._remembers[index] = remembers(self.template(device))
        if self._remembers[index]:
            return self._built(device)
        kept: OrderedDict[int, Network] = self._mine.__dict__.setdefault("networks", OrderedDict())
        if index not in kept:
            kept[index] = self._built(device)
            if len(kept) > KEPT_NETWORKS:
                kept.popitem(last=False)
        kept.move_to_end(index)
        return kept[index]

    def _built(self, device: int) -> Network:
        module = copy.deepcopy(self.template(device))
        if self.plan.compiler and self._where.type == "cpu":
            rewrite(module)
        shape = self._data.dataset.input_shape
        return Network(module, first_dense(module, shape) if self._where.type == "cpu" else None)

    def _compile(self) -> None:
        """Compile now what the networks of the fleet need, so that no round waits for it."""
        for index in sorted({int(index) for index in self._models.architecture}):
            device = int((self._models.architecture == index).argmax())
            if has_blocks(self.template(device)):
                with torch.no_grad():
                    body = self._built(device).module.eval().get_submodule("body")
                    body(torch.zeros(2, *self._data.dataset.input_shape, dtype=self._number))

    def _draws(self, device: int) -> bool:
        """Whether a device's module draws random numbers when it trains, found out once for each architecture."""
        index = int(self._models.architecture[device])
        if index not in self._dropout:
            rows = [row % len(self._data.dataset.train_y) for row in range(2)]
            inputs = self._converted(self._data.dataset.inputs("train", rows))
            self._dropout[index] = draws(self.template(device), inputs)
        return self._dropout[index]


@contextmanager
def own_draws(key: RoundKey, device: int) -> Iterator[None]:
    """Seed layers that draw by other means than dropout by name too; restore the global RNG state afterward."""
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(key.torch_seed("layers", device))
        yield


def remembers(module: nn.Module) -> bool:
    """Whether a module may keep something that no state holds, so that each device needs a copy of its own.

    >>> remembers(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    False
    """
    persistent = module.state_dict()
    kept = all(name in persistent for name, _ in module.named_buffers())
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    trusted = all(f"{type(part).__module__}.".startswith(TRUSTED) for part in module.modules())
    return not trusted or not kept or hooked


def statistics_of(
    outputs: Tensor, labels: Tensor, classes: int, clip_norm: float | None = None, *, scatter: bool = False
) -> ClassStatistics:
    """Return counts and means per class (zero where there is no sample) of one device's outputs: equation (4).

    Args:
        outputs: One row per sample.
        labels: The class of each sample.
        classes: Number of classes.
        clip_norm: Largest Euclidean norm of a row, to which larger ones are scaled down.
        scatter: Whether Σ (x − μ_y)(x − μ_y)ᵀ over all samples is computed too, in float64.
    """
    if clip_norm is not None:
        outputs = outputs * (clip_norm / outputs.norm(dim=1, keepdim=True)).clamp(max=1)
    count = torch.bincount(labels, minlength=classes)
    total = outputs.new_zeros(classes, outputs.shape[1]).index_add_(0, labels, outputs)
    means = total / count.clamp(min=1)[:, None]
    if not scatter:
        return ClassStatistics(means, count)
    exact = outputs.double()
    center = exact.new_zeros(classes, outputs.shape[1]).index_add_(0, labels, exact) / count.clamp(min=1)[:, None]
    apart = exact - center[labels]
    return ClassStatistics(means, count, apart.t() @ apart)


def _is_same(one: State, other: State) -> bool:
    """Whether two states are the same tensors, not merely equal ones."""
    return one is other or (one.keys() == other.keys() and all(one[name] is other[name] for name in one))
