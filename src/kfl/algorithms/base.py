"""What a learning algorithm is: how devices learn, what they send and what the server makes of it.

Server state, device state and messages are three different things, because in a real fleet they live in three
different places. An algorithm written this way runs unchanged as a batch in the simulator and as one device in
a process of its own. An algorithm *is* its hyper-parameters: a frozen dataclass whose fields become options of
the command line. State is passed in and returned, never changed in place.

A round is:  broadcast → local_update (on the chosen devices) → aggregate;  `predictor` says at any time which
model a device would use, chosen or not. An algorithm whose devices share nothing needs `local_update` alone.

Work is charged by one rule for all. As printed, a round costs a device the forward passes of its τ local steps, τ D C
operations, whatever else the algorithm does. With `real_work` it costs everything the algorithm computes on a device:
forward passes, backward passes (twice the forward pass of a layer that is trained, once that of a layer that gradients
only pass through), further models, passes over proxy samples and those that read features or logits. Evaluation,
compression, noise and the server's work are charged to nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

from kfl.algorithms.uploads import Rejection, Upload, UploadFormat
from kfl.core.errors import ConfigError, KflError, ModelError
from kfl.core.fields import Fields

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.sums import Summation
    from kfl.engine import DeviceProfile, Engine, RoundKey, Sgd
    from kfl.models import FleetModels, State

    Message = Mapping[str, Tensor]
    """What the server sends to the chosen devices."""


LARGEST = 1e30
"""No step or weight of a loss may be larger: models are float32, which ends at 3e38."""
BITS_PER_VALUE = 32
"""Bits of one number on the air, the paper's q: float32."""


@dataclass(frozen=True)
class PlotStyle:
    """How an algorithm's line is drawn; plain values, in the terms of Matplotlib."""

    colour: str
    dash: tuple[float, ...] = ()
    """Lengths of dashes and gaps in units of the line's width; empty for a solid line."""
    width: float = 1.7
    """In points."""


@dataclass(frozen=True)
class Cost:
    """What one round costs one device."""

    flops: float
    """Floating-point operations of the local work."""
    bits_up: float
    bits_down: float


@dataclass(frozen=True)
class Algorithm(Fields, ABC):
    """How devices learn."""

    name: ClassVar[str]
    """The word that selects it on the command line and in files."""
    needs_equal_models: ClassVar[bool] = False
    """True where the server averages weights, which needs one architecture for all."""
    server_needs_models: ClassVar[bool] = False
    """True where the server holds layers of the devices' networks: in a fleet it then builds those its file names."""
    predicts_alone: ClassVar[bool] = True
    """True where a device's predictions depend on its own state only: an idle one need not be tested again."""
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = None
    """The field that `kfl compare --search` searches beside the learning rate, and the values it tries; None for none."""
    style: ClassVar[PlotStyle | None] = None
    """Its line in plots; None for one that follows from its name."""

    local_steps: int = 5
    """Passes over the local data in a round, τ. A pass is one full-batch step unless batch_size is set."""
    learning_rate: float = 0.05
    """Learning rate of the body, η_u."""
    head_learning_rate: float | None = None
    """Learning rate of the head, η_v; none for the same as the body's."""
    momentum: float = 0.9
    """Momentum of the local steps; its memory starts fresh in every round."""
    batch_size: int | None = None
    """Samples per step; None takes all local samples at once, as the paper's text says."""

    def validate(self) -> None:
        """Raise ConfigError for a value that cannot work. An algorithm's own fields are checked by `check`."""
        require(self.local_steps >= 1, "local_steps", self.local_steps, "1 or more")
        require(0 < self.learning_rate <= LARGEST, "learning_rate", self.learning_rate, "a number above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        head, size = self.head_learning_rate, self.batch_size
        require(head is None or 0 < head <= LARGEST, "head_learning_rate", head, "a number above 0, or none")
        require(size is None or size >= 1, "batch_size", size, "1 or more, or none for all samples")
        self.check()

    def check(self) -> None:
        """Raise ConfigError for a value of an algorithm's own fields that cannot work."""

    @property
    def proxy_per_class(self) -> int:
        """Samples of each class that are taken out of the training set and known to all; 0 for none."""
        return 0

    def check_models(self, models: FleetModels) -> None:
        """Raise ModelError for a fleet whose models this algorithm cannot average."""
        if not self.needs_equal_models:
            return
        devices = {int(which): device for device, which in enumerate(models.architecture)}
        shapes = {
            tuple((name, tuple(value.shape)) for name, value in models.initial(device, 0).items())
            for device in devices.values()
        }
        if len(shapes) > 1:
            raise ModelError(
                f"The algorithm {self.name} averages weights, which needs one architecture for all devices, but "
                f"there are {len(shapes)}: give one width, such as --widths 256, one network with its width, such as "
                "--model resnet8-16, or models that are built alike."
            )

    def device_models(self, models: FleetModels) -> FleetModels:
        """The networks that devices train: the fleet's own, unless an algorithm puts something around each."""
        return models

    def added_parameters(self, profile: DeviceProfile) -> int:
        """How many parameters `device_models` added to a device's own network: none, unless it adds some."""
        return 0

    def server_init(self, engine: Engine, seed: int) -> State:
        """What the server knows before the first round."""
        return {}

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """What a device holds before its first round. Asked for late: an untouched device is its seed."""
        return engine.initial(device, seed)

    def broadcast(self, server: State) -> Message:
        """What goes down to the chosen devices: nothing, unless an algorithm says otherwise."""
        return {}

    @abstractmethod
    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """The chosen devices' work: their new states and what they send."""

    def upload_format(self, server: State) -> UploadFormat:
        """The arrays of an upload: names, shapes, types and what each holds; empty where devices send nothing.

        A fleet's server accepts exactly these arrays. `ArrayFormat.bits` and `rows` say how an array goes over the
        air, where that is not all of its values in their own type: by that a run counts the bits it reports
        (`kfl.algorithms.sent`).
        """
        return {}

    @classmethod
    def sends(cls) -> bool:
        """Whether devices upload anything at all."""
        return cls.upload_format is not Algorithm.upload_format

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """The server's new state from what arrived, and the uploads it refused.

        The server may train too: `engine` runs its steps and `key` addresses its draws, as in `local_update`.
        Where devices send nothing, nothing changes.
        """
        return server, [Rejection(upload.device, "nothing_expected", {"algorithm": self.name}) for upload in uploads]

    def summation(self) -> Summation | None:
        """How uploads can be added without being seen (`kfl.algorithms.sums`); None where the server needs each."""
        return None

    def class_vectors(self, server: State) -> tuple[Tensor, Tensor] | None:
        """One vector per class (classes × features) for reports to show, and which classes have one; None for none."""
        return None

    def predictor(self, server: State, device: State) -> State:
        """The weights a device predicts with, whether it was chosen lately or not: its own model."""
        return device

    def real_flops(self, profile: DeviceProfile) -> float:
        """Everything a device computes in a round: τ forward and backward passes, unless an algorithm does more."""
        return training_flops(self.local_steps, profile)

    def bits(self, profile: DeviceProfile) -> tuple[float, float]:
        """Bits that a device is to send and receive in a round, which the scheduler plans with.

        None where devices send nothing. `profile.model.layers` are the layers of the device's own network with their
        names and sizes, and `profile.shared` those that all networks share. Where uploads turn out to have another
        size, the run says so.
        """
        if self.sends():
            raise KflError(f"{type(self).__name__} has uploads, so its bits() must say how large they are.")
        return 0, 0

    def cost(self, profile: DeviceProfile, *, real_work: bool) -> Cost:
        """What a round costs a device, by the rule of all algorithms: τ D C as printed, or the real work."""
        printed = float(self.local_steps * profile.samples * profile.model.flops)
        return Cost(self.real_flops(profile) if real_work else printed, *self.bits(profile))

    def sgd(self) -> Sgd:
        """The local steps as the engine expects them."""
        from kfl.engine import Sgd

        head = self.learning_rate if self.head_learning_rate is None else self.head_learning_rate
        return Sgd(self.local_steps, self.learning_rate, head, self.momentum, self.batch_size)


def training_flops(steps: int, profile: DeviceProfile) -> float:
    """Real work of training steps: a forward pass, and a backward pass of twice its work."""
    return float(3 * steps * profile.samples * profile.model.flops)


def feature_flops(profile: DeviceProfile) -> float:
    """Real work of reading the features of all local samples: one pass through the body."""
    return float(profile.samples * profile.model.body_flops)


def held_bits(profile: DeviceProfile, values_per_class: int, bits: int = BITS_PER_VALUE) -> float:
    """Bits of so many values for each class that a device holds, and one bit per class that says which these are.

    All classes are charged where it is not known how many a device holds.
    """
    classes = profile.model.classes
    held = classes if profile.held_classes is None else profile.held_classes
    return float(held * values_per_class * bits + classes)


def require(condition: bool, field: str, value: object, expected: str) -> None:
    """Raise a ConfigError that names an algorithm's field unless the condition holds."""
    if not condition:
        raise ConfigError(f"algorithm.{field}", value, expected)


_COLOURS = ("#7f3c8d", "#11a579", "#e68310", "#008695", "#cf1c90", "#80602b", "#4b4b8f", "#a5313a")
_DASHES: tuple[tuple[float, ...], ...] = ((), (7, 2), (2, 1.5), (6, 1.5, 1.5, 1.5))


def automatic_style(name: str) -> PlotStyle:
    """The line of an algorithm that declares none: it follows from the name, so it is the same in every plot.

    >>> automatic_style("my-algorithm") == automatic_style("my-algorithm")
    True
    """
    number = crc32(name.encode("utf-8", "surrogatepass"))
    return PlotStyle(_COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)])
