"""What algorithms ask of a machine: train, read features, evaluate a set of devices.

An algorithm decides *what* (devices, loss, number of steps), an engine *how*. The interface does not reveal whether
devices are trained one after another or as one batch, on a CPU or on a GPU, so an algorithm is written once and runs
in a simulator of thousands of devices as in one process on one device.

How an engine executes is a plan, made once, kept in the run folder and used again when a run is resumed. The same plan
on the same machine gives the same numbers bit for bit. Different plans agree to a tolerance. Nothing here imports
PyTorch.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kfl.core.config import Table, from_table, to_table
from kfl.core.randomness import torch_seed

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.engine.objectives import Objective
    from kfl.models import ModelProfile, SharedLayers, State


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
        """Seed of a draw that nobody else may repeat, such as privacy noise: on a real device (`SecretKey`) one of its
        own. In a simulation, where nothing is secret, the same as any other."""
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


Precision = Literal["float32", "tf32", "bf16", "float64"]
Outputs = Literal["features", "logits"]
"""What is read from a model: what its body says of a sample, or its head."""
Path = Literal["mlp", "cnn", "plain", "worker", "stacked"]


@dataclass(frozen=True)
class Plan:
    """How an engine executes.

    >>> plan = Plan(paths=("mlp", "plain"), workers=2)
    >>> Plan.read(plan.table()) == plan
    True
    """

    device: Literal["cpu", "cuda"] = "cpu"
    precision: Precision = "float32"
    """Type of the numbers. tf32 is a GPU's and means float32 on a CPU; with bf16 only products are shortened."""
    workers: int = 1
    """Devices trained side by side on the CPU, each by one thread."""
    gram: bool = True
    """Whether an MLP's first layer may go through the Gram matrix of the samples where that is less work."""
    paths: tuple[Path, ...] = ()
    """For each architecture: mlp or cnn (written out by hand), stacked (many devices in one batch), worker (autograd,
    one device per core), or plain autograd, one device after another."""
    otherwise: Literal["plain", "worker"] = "plain"
    """How mlp and cnn are trained where nothing is written out: mini-batches, objectives of one's own."""
    compiled: bool = False
    """Whether workers run convolutions as compiled loops (extra `fast`) where these are faster than PyTorch's."""

    def table(self) -> Table:
        """As plain values, for a file. What older plans did not have is left out where it does nothing."""
        added = {"otherwise": "plain", "compiled": False}
        return {name: value for name, value in to_table(self).items() if added.get(name, ()) != value}

    @staticmethod
    def read(table: Mapping[str, Any]) -> Plan:
        """From plain values; a ConfigError names what does not fit.

        A plan of an older version may have `together`, how many seeds shared a batch. It did not change what was
        computed and is ignored.

        >>> Plan.read({"precision": "bf16", "together": 5}).precision
        'bf16'
        """
        return from_table(Plan, {name: value for name, value in table.items() if name != "together"}, "plan.")


class Engine(ABC):
    """Trains, reads features from and evaluates the models of a set of devices.

    Every method takes the devices' numbers and their states in the same order, and returns results in that
    order. States that come in are never changed.
    """

    classes: int
    features: int
    plan: Plan
    """How this engine executes: with the same plan on the same machine, results are the same bit for bit."""

    @abstractmethod
    def place(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Bring a message to where this engine computes."""

    @abstractmethod
    def profile(self, device: int) -> DeviceProfile:
        """The sizes of a device's model and data."""

    @abstractmethod
    def shared(self) -> SharedLayers:
        """The layers that the models of all devices have in the same shape."""

    @abstractmethod
    def initial(self, device: int, seed: int, *, common: bool = False) -> State:
        """A device's model before its first round; with `common`, one start for all."""

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
    def class_means(
        self,
        devices: Sequence[int],
        states: Sequence[State],
        clip_norm: float | None = None,
        of: Outputs = "features",
    ) -> tuple[Tensor, Tensor]:
        """Mean feature per class over each device's training data, in evaluation mode: equation (4).

        Returns means of shape (devices, classes, features), zero where a device has no sample of the class,
        and counts of shape (devices, classes). With `clip_norm`, the feature of each sample is first scaled
        down to at most this Euclidean norm, so that one sample can move a mean only so far. `of` logits, the means
        are those of the logits: (devices, classes, classes).
        """

    @abstractmethod
    def proxy(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples that every device and the server hold; empty where there are none."""

    @abstractmethod
    def logits(self, devices: Sequence[int], states: Sequence[State], inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs, in evaluation mode: (devices, samples, classes)."""

    @abstractmethod
    def correct(self, devices: Sequence[int], states: Sequence[State]) -> list[int]:
        """Number of test samples of each device that its model predicts correctly."""

    @abstractmethod
    def test_samples(self, device: int) -> int:
        """Number of test samples of a device."""
