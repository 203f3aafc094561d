"""The simplest engine: one device after another, plain autograd. Slow, and easy to believe."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from kfl.data import LocalData
from kfl.engine.base import DeviceProfile, Engine, Outputs, Plan, RoundKey, Sgd
from kfl.engine.layers import Layers, draws, step_seed
from kfl.engine.objectives import Objective
from kfl.models import FleetModels, SharedLayers, State, parts, tied, with_ties

Forward = Callable[[State, Tensor], tuple[Tensor, Tensor]]
"""(parameters of one model, inputs) → (feature vectors, logits)."""


class SequentialEngine(Engine):
    """Trains devices one after another with PyTorch's autograd, in float32 or float64.

    The other engines are this one with faster ways for most of the work.
    """

    def __init__(
        self,
        data: LocalData,
        models: FleetModels,
        device: str = "cpu",
        number: str = "float32",
        plan: Plan | None = None,
    ) -> None:
        self.plan = plan or Plan(
            device="cuda" if device == "cuda" else "cpu",
            precision="float64" if number == "float64" else "float32",
            paths=tuple("plain" for _ in models.builders),
        )
        self.classes = data.dataset.classes
        self.features = models.features
        self._data = data
        self._models = models
        self._where = torch.device(device)
        self._number = torch.float64 if number == "float64" else torch.float32
        self._train_sizes = data.partition.train_sizes
        self._test_sizes = data.partition.test_sizes
        self._templates: dict[int, nn.Module] = {}
        self._dropout: dict[int, bool] = {}

    def place(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Bring a message to the processor that computes."""
        return {name: value.to(self._where) for name, value in arrays.items()}

    def profile(self, device: int) -> DeviceProfile:
        """The sizes of a device's model and data."""
        model = self._models.profiles[self._models.architecture[device]]
        held = int((self._data.partition.train_counts[device] > 0).sum())
        return DeviceProfile(model, int(self._train_sizes[device]), held, self.shared())

    def shared(self) -> SharedLayers:
        """The layers that the models of all devices have in the same shape."""
        return self._models.shared

    def initial(self, device: int, seed: int, *, common: bool = False) -> State:
        """A device's model before its first round."""
        start = self._models.initial(device, seed, common=common)
        return {name: self._converted(value) for name, value in start.items()}

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
        return [
            self.train_one(device, state, objective.for_device(index), sgd, key, data)
            for index, (device, state) in enumerate(zip(devices, states, strict=True))
        ]

    def train_one(
        self,
        device: int,
        state: State,
        objective: Objective,
        sgd: Sgd,
        key: RoundKey,
        data: tuple[Tensor, Tensor] | None = None,
    ) -> State:
        """One device with its own objective."""
        with self.own_draws(key, device):
            module = self.template(device)
            return self.descend(module, as_function(module), device, state, objective, sgd, key, data)

    @contextmanager
    def own_draws(self, key: RoundKey, device: int) -> Iterator[None]:
        """Layers that draw by other means than dropout do it by name too, and leave the caller's random state alone."""
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(key.torch_seed("layers", device))
            yield

    def descend(
        self,
        module: nn.Module,
        forward: Forward,
        device: int,
        state: State,
        objective: Objective,
        sgd: Sgd,
        key: RoundKey,
        data: tuple[Tensor, Tensor] | None = None,
    ) -> State:
        """The steps of one device through a module of its architecture, called as a function of its weights."""
        module.train()
        buffers = {name for name, _ in module.named_buffers()}
        now = {name: value.clone() for name, value in state.items()}
        descent = objective.descent([name for name in now if name.rpartition("/")[2] not in buffers], sgd)
        trained = list(descent.rates)
        if not trained:
            return now
        velocity: State = {}
        inputs, targets = self._read(device, "train") if data is None else data
        seed = torch.tensor(key.torch_seed("layers", device), device=self._where) if self._draws(device) else None
        for number, batch in enumerate(batches(len(targets), sgd, key, device)):
            x, y = (inputs, targets) if batch is None else (inputs[batch], targets[batch])
            for name in trained:
                now[name].requires_grad_()
            with torch.enable_grad(), _layers(seed, number, len(y)):
                loss = objective.loss(forward, now, x, y)
            gradients = torch.autograd.grad(loss, [now[name] for name in trained], allow_unused=True)
            with torch.no_grad():
                for name, gradient in zip(trained, gradients, strict=True):
                    if gradient is not None:
                        if name in velocity:
                            velocity[name].mul_(sgd.momentum).add_(gradient)
                        else:
                            velocity[name] = gradient.clone()  # gradients of two names may be one tensor
                        now[name].sub_(velocity[name], alpha=descent.rates[name])
                        now[name] = objective.project(name, now[name].detach())
        return with_ties({name: value.detach() for name, value in now.items()}, tied(module), copies=True)

    @torch.no_grad()
    def class_means(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        clip_norm: float | None = None,
        of: Outputs = "features",
    ) -> tuple[Tensor, Tensor]:
        """Equation (4): Ω_{k,c} is the mean of h_k(x) over the device's samples of class c."""
        means, counts = ([values] for values in self._no_means(of))
        for device, state in zip(devices, states, strict=True):
            body, head = parts(self._load(device, state).eval())
            inputs, labels = self._read(device, "train")
            found = body(inputs) if of == "features" else head(body(inputs))
            mean, count = means_of(found, labels, self.classes, clip_norm)
            means.append(mean[None])
            counts.append(count[None])
        return torch.cat(means), torch.cat(counts)

    def _no_means(self, of: Outputs) -> tuple[Tensor, Tensor]:
        """Class means and counts of no device at all."""
        size = self.features if of == "features" else self.classes
        means = torch.zeros(0, self.classes, size, dtype=self._number, device=self._where)
        return means, torch.zeros(0, self.classes, dtype=torch.int64, device=self._where)

    @torch.no_grad()
    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs."""
        inputs = self._converted(inputs)
        found = [torch.zeros(0, len(inputs), self.classes, device=self._where, dtype=self._number)]
        for device, state in zip(devices, states, strict=True):
            body, head = parts(self._load(device, state).eval())
            found.append(head(body(inputs))[None])
        return torch.cat(found)

    @torch.no_grad()
    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Number of correct predictions on each device's own test samples."""
        found = []
        for device, state in zip(devices, states, strict=True):
            inputs, labels = self._read(device, "test")
            if len(labels) == 0:
                found.append(0)
                continue
            body, head = parts(self._load(device, state).eval())
            found.append(int((head(body(inputs)).argmax(1) == labels).sum()))
        return found

    def proxy(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples that everybody holds."""
        inputs, labels = self._data.read_proxy()
        return self._converted(inputs), labels.to(self._where)

    def test_samples(self, device: int) -> int:
        """Number of test samples of a device."""
        return int(self._test_sizes[device])

    def _read(self, device: int, split: str) -> tuple[Tensor, Tensor]:
        x, y = self._data.read(device, "train" if split == "train" else "test")
        return self._converted(x), y.to(self._where)

    def _converted(self, value: Tensor) -> Tensor:
        """Where this engine computes and in its numbers; whole numbers stay as they are."""
        return value.to(self._where, self._number) if value.is_floating_point() else value.to(self._where)

    def _load(self, device: int, state: State) -> nn.Module:
        """The device's architecture with the given weights."""
        module = self.template(device)
        module.load_state_dict(with_ties(state, tied(module)))
        return module

    def _draws(self, device: int) -> bool:
        """Whether a device's module draws random numbers when it trains, found out once for each architecture."""
        index = int(self._models.architecture[device])
        if index not in self._dropout:
            rows = [row % len(self._data.dataset.train_y) for row in range(2)]
            inputs = self._converted(self._data.dataset.inputs("train", rows))
            self._dropout[index] = draws(self.template(device), inputs)
        return self._dropout[index]

    def template(self, device: int) -> nn.Module:
        """One module per architecture is kept, and refilled or called with other weights."""
        index = int(self._models.architecture[device])
        if index not in self._templates:
            with torch.random.fork_rng(devices=[]):
                self._templates[index] = copy.deepcopy(self._models.builders[index]()).to(self._where, self._number)
        return self._templates[index]


def _layers(seed: Tensor | None, number: int, samples: int) -> AbstractContextManager[object]:
    """What the layers of a step have besides their inputs; nothing for most."""
    if seed is not None:
        return Layers(seed=step_seed(seed, number))
    return Layers() if samples == 1 else nullcontext()


def means_of(feature: Tensor, labels: Tensor, classes: int, clip_norm: float | None) -> tuple[Tensor, Tensor]:
    """Mean feature per class, zero where there is no sample, and counts: equation (4)."""
    if clip_norm is not None:
        feature = feature * (clip_norm / feature.norm(dim=1, keepdim=True)).clamp(max=1)
    count = torch.bincount(labels, minlength=classes)
    total = feature.new_zeros(classes, feature.shape[1]).index_add_(0, labels, feature)
    return total / count.clamp(min=1)[:, None], count


def as_function(module: nn.Module) -> Forward:
    """A module as a pure function (parameters, inputs) → (features, logits)."""
    body, head = parts(module)
    ties = tied(module)

    def forward(state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
        state = with_ties(state, ties)
        feature = functional_call(body, _part(state, "body."), (inputs,))
        return feature, functional_call(head, _part(state, "head."), (feature,))

    return forward


def _part(state: State, prefix: str) -> State:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}


def batches(samples: int, sgd: Sgd, key: RoundKey, device: int) -> Iterator[Tensor | None]:
    """The index sets of each step: None stands for all samples."""
    for number in range(sgd.steps):
        if sgd.batch_size is None or sgd.batch_size >= samples:
            yield None
        else:
            generator = torch.Generator().manual_seed(key.torch_seed("batches", device, number))
            yield from torch.randperm(samples, generator=generator).split(sgd.batch_size)


def batches_per_pass(samples: int, sgd: Sgd) -> int:
    """How many steps one pass over a device's samples takes; 0 stands for one step over all of them."""
    if sgd.batch_size is None or sgd.batch_size >= samples:
        return 0
    return -(-samples // sgd.batch_size)
