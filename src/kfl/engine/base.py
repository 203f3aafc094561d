"""Interface between algorithms and processors: train, read and evaluate a set of devices.

An algorithm decides *what* (devices, loss, number of steps), an engine *how*. The interface does not reveal whether
devices are trained one after another or as one batch, on a CPU or on a GPU, so an algorithm is written once and runs
in a simulator of thousands of devices as in one process on one device.

How an engine executes is a plan (`kfl.engine.plan`). Nothing here imports PyTorch.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kfl.core.randomness import torch_seed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kfl.data import LocalData, SharedSamples
    from kfl.engine.objectives import Objective
    from kfl.engine.plan import Plan
    from kfl.models import FleetModels, ModelProfile, SharedLayers, State


@dataclass(frozen=True)
class Sgd:
    """How a device descends: gradient descent with momentum, the buffer fresh in every round."""

    steps: int
    """Passes over the local data, τ. A pass is one full-batch step, or one step per mini-batch."""
    body_rate: float
    """Learning rate of the body, η_u."""
    head_rate: float
    """Learning rate of the head, η_v."""
    momentum: float
    batch_size: int | None = None
    """None: full batch, as in the paper."""


@dataclass(frozen=True)
class RoundKey:
    """Addresses the draws of one round: same seed, round, purpose and device, same draw."""

    seed: int
    round: int
    phase: int = 0
    """Counts the trainings of one device in one round, where an algorithm has several: their draws differ."""

    def torch_seed(self, purpose: str, device: int, *address: int) -> int:
        """Seed for a PyTorch generator."""
        name = f"{purpose}, phase {self.phase}" if self.phase else purpose
        return torch_seed(self.seed, name, self.round, device, *address)

    def secret_seed(self, purpose: str, device: int) -> int:
        """Seed of a draw that no other party may repeat, such as privacy noise: on a real device (`SecretKey`) one of
        its own. In a simulation, where nothing is secret, the same as any other."""
        return self.torch_seed(purpose, device)


@dataclass(frozen=True)
class SecretKey(RoundKey):
    """A round's key on a real device, whose server knows the seed and could subtract noise that follows from it."""

    def secret_seed(self, purpose: str, device: int) -> int:
        """63 bits from the system's own source, new every time."""
        return secrets.randbits(63)


@dataclass(frozen=True)
class DeviceProfile:
    """What is known of one device's task: enough to state what a round costs it."""

    model: ModelProfile
    samples: int
    """Training samples D_k."""
    held_classes: int | None = None
    """Classes of which the device has samples; None where that is not known."""
    shared: SharedLayers | None = None
    """The layers that the models of all devices have in the same shape; None where that is not known."""


Outputs = Literal["inputs", "features", "logits"]
"""What class statistics are taken of: the samples themselves, or what a model's body or head says of them."""


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Counts and means of each class on each device, and the scatter around them; or those of one device."""

    means: Tensor
    """(devices, classes, size), zero where a device has no sample of the class."""
    counts: Tensor
    """(devices, classes), integers."""
    scatter: Tensor | None = None
    """Σ (x − μ_y)(x − μ_y)ᵀ over all samples of a device, (devices, size, size) in float64; None unless asked for."""

    def cpu(self) -> ClassStatistics:
        """Return the same in main memory: one copy of each array, which waits for a GPU once."""
        scatter = None if self.scatter is None else self.scatter.cpu()
        return ClassStatistics(self.means.cpu(), self.counts.cpu(), scatter)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: int) -> ClassStatistics:
        """Those of one device, by its place."""
        scatter = None if self.scatter is None else self.scatter[index]
        return ClassStatistics(self.means[index], self.counts[index], scatter)

    def __iter__(self) -> Iterator[ClassStatistics]:
        return (self[index] for index in range(len(self)))

    @staticmethod
    def stacked(devices: Sequence[ClassStatistics]) -> ClassStatistics:
        """Return those of several devices, at least one, from each one's."""
        import torch

        scatters = [one.scatter for one in devices if one.scatter is not None]
        return ClassStatistics(
            torch.stack([one.means for one in devices]),
            torch.stack([one.counts for one in devices]),
            torch.stack(scatters) if scatters else None,
        )


class Engine(ABC):
    """Trains, reads features from and evaluates the models of a set of devices.

    Every method takes the devices' numbers and their states in the same order, and returns results in that
    order. States that come in are never changed.
    """

    def __init__(self, data: LocalData, models: FleetModels, plan: Plan, where: torch.device) -> None:
        """Hold every device's samples and network; `where` is the processor that computes."""
        from kfl.engine.precision import Arithmetic

        self.plan = plan
        """How this engine executes: with the same plan on the same machine, results are the same bit for bit."""
        self.classes, self.features = data.dataset.classes, models.features
        self.inputs, self.whitened = data.dataset.input_size, data.dataset.whitened
        self._data, self._models, self._where = data, models, where
        self._arithmetic = Arithmetic(plan.precision, where.type)

    def place(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Bring a message to where this engine computes, without waiting for what it does there."""
        return {name: value.to(self._where, non_blocking=True) for name, value in arrays.items()}

    def profile(self, device: int) -> DeviceProfile:
        """The sizes of a device's model and data."""
        model = self._models.profiles[self._models.architecture[device]]
        held = int((self._data.partition.train_counts[device] > 0).sum())
        return DeviceProfile(model, self._data.size(device, "train"), held, self.shared)

    @property
    def shared(self) -> SharedLayers:
        """The layers that the models of all devices have in the same shape."""
        return self._models.shared

    def initial(self, device: int, seed: int, *, common: bool = False) -> State:
        """A device's model before its first round; with `common`, one start for all."""
        start = self._models.initial(device, seed, common=common)
        return {name: self._converted(value) for name, value in start.items()}

    def proxy(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples that every device and the server hold; empty where there are none."""
        inputs, labels = self._data.read_proxy()
        return self._converted(inputs), labels.to(self._where)

    def samples(self, device: int, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """A device's own inputs and labels, for what is computed from them directly."""
        inputs, labels = self._data.read(device, split)
        return self._converted(inputs), labels.to(self._where)

    def shared_samples(self, devices: Sequence[int], split: Literal["train", "test"]) -> SharedSamples:
        """Samples of several devices on the CPU, each sample once: for what is computed of many devices together."""
        found = self._data.read_shared(devices, split)
        return replace(found, inputs=found.inputs.to(self._arithmetic.dtype))

    def _converted(self, value: Tensor) -> Tensor:
        """A value where this engine computes and in its numbers; integers stay as they are."""
        return value.to(self._where, self._arithmetic.dtype) if value.is_floating_point() else value.to(self._where)

    @abstractmethod
    def train(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        objective: Objective,
        sgd: Sgd,
        key: RoundKey,
        data: tuple[Tensor, Tensor] | None = None,
    ) -> list[State]:
        """Descend the objective on each device's own training data, or on the given (inputs, targets) for all."""

    @abstractmethod
    def class_statistics(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        of: Outputs = "features",
        *,
        scatter: bool = False,
        clip_norm: float | None = None,
    ) -> ClassStatistics:
        """Mean per class over each device's training data, in evaluation mode: equation (4).

        Args:
            devices: Their numbers.
            states: Their models; inputs do not depend on them.
            of: Whether the means are those of the samples, of the features or of the logits.
            scatter: Whether the centered scatter within the classes is computed too.
            clip_norm: Euclidean norm to which each sample's vector is scaled down first, so that one sample can move
                a mean only so far.

        Returns:
            Counts, means and, where asked for, the scatter of each device.
        """

    @abstractmethod
    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs, in evaluation mode: (devices, samples, classes)."""

    @abstractmethod
    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Number of test samples of each device that its model predicts correctly."""
