"""What a learning algorithm is: how devices learn, what they send and what the server makes of it.

Server state, device state and messages are three different things, because in a real fleet they live in three
different places. An algorithm written this way runs unchanged as a batch in the simulator and as one device in
a process of its own. An algorithm *is* its hyper-parameters: a frozen dataclass whose fields become options of
the command line. State is passed in and returned, never changed in place.

A round is:  broadcast → local_update (on the chosen devices) → aggregate;  `predictor` says at any time which
model a device would use, chosen or not. An algorithm whose devices share nothing needs `local_update` alone. One that
sends something up declares it in `upload_format`: which uploads are refused, their mean or robust combination, secure
sums and sizes on the air all follow from that. `aggregate` is the default, unless a server does more than averaging:

    uploads ─ usable? ─> decoded ─> one weighted mean, or a robust rule measured from `center` ─> updated ─> server

Work is charged by one rule for all. As printed, a round costs a device the forward passes of its τ local steps, τ D C
operations, whatever else the algorithm does. With `real_work` it costs everything the algorithm computes on a device:
forward passes, backward passes (twice the forward pass of a layer that is trained, once that of a layer that gradients
only pass through), further models, passes over proxy samples and those that read features or logits. Evaluation,
compression, noise and the server's work are not charged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.aggregation import RULES, Aggregation, Sums, combine, means, stored_like
from kfl.algorithms.uploads import (
    BITS_PER_VALUE,
    ArrayFormat,
    Rejection,
    Upload,
    UploadFormat,
    as_declared,
    usable,
    wire_size,
)
from kfl.core.config import Fields
from kfl.core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from kfl.engine import DeviceProfile, Engine, RoundKey, Sgd
    from kfl.models import FleetModels, State

    Message = Mapping[str, Tensor]
    """What the server sends to the chosen devices."""


LARGEST = 1e30
"""No step or weight of a loss may be larger: models are float32, which ends at 3e38."""


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
    trains: ClassVar[bool] = True
    """False where nothing descends: the settings of local steps must then keep their defaults."""
    needs_encoder: ClassVar[bool] = False
    """True where features must mean the same on all devices: `--encoder auto` is then the one that suits the data."""
    fixed_features: ClassVar[bool] = False
    """True where what is reported does not depend on anything that was trained."""
    tested_at_once: ClassVar[int] = 100
    """Devices whose states are in memory together when a simulated fleet is tested."""
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = None
    """The field that `kfl compare --search` tries next to the learning rate, and its values; None for none."""

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
        self._check_idle()
        self.check()

    def _check_idle(self) -> None:
        """Refuse settings of local steps where there are none: they would change nothing."""
        for one in fields(Algorithm) if not self.trains else ():
            value = getattr(self, one.name)
            require(value == one.default, one.name, value, f"left out: {self.name} takes no training steps")

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
        """Declare the arrays of an upload: names, shapes, types and weights; empty where devices send nothing.

        A fleet's server accepts exactly these arrays. `ArrayFormat.bits` and `held_rows` say how an array goes over
        the air, where that is not all of its values in their own type: the scheduler plans with that, and a run counts
        the bits it reports by it.
        """
        return {}

    def broadcast_format(self, server: State) -> UploadFormat:
        """Declare the arrays of a broadcast that are charged: all of them, unless flags, which are not."""
        import torch

        message = self.broadcast(server)
        return {name: ArrayFormat.like(value) for name, value in message.items() if value.dtype != torch.bool}

    @classmethod
    def sends(cls) -> bool:
        """Return whether devices upload anything at all."""
        return cls.upload_format is not Algorithm.upload_format

    def twin(self) -> str:
        """Return the algorithm that is left of this one where no other device uploads: its twin, which uploads nothing.

        What an algorithm is above its twin came from what others sent.
        """
        return "local"

    def rule(self) -> tuple[Aggregation, float]:
        """Return how uploads become one, and the share that `trimmed` leaves out: the mean, unless a field says so."""
        return getattr(self, "aggregation", "mean"), getattr(self, "trim", 0.0)

    def averaged_format(self, server: State) -> UploadFormat:
        """Declare the arrays that `decoded` makes of an upload: those of the upload itself, unless it is packed."""
        return self.upload_format(server)

    @property
    def packs(self) -> bool:
        """Whether `decoded` makes something else of uploads."""
        return type(self).decoded is not Algorithm.decoded

    @property
    def upload_bits(self) -> int:
        """Bits of one value of an upload: 32, unless a field says otherwise."""
        return getattr(self, "bits_per_value", BITS_PER_VALUE)

    def decoded(self, upload: Upload, server: State) -> Mapping[str, Tensor]:
        """Return what is averaged of an upload: its own arrays, unless they are packed."""
        return upload.arrays

    def summed(self, uploads: Sequence[Upload], server: State) -> Sums | None:
        """Return the weighted sums of what is averaged of many packed uploads at once; None to unpack each of them.

        It saves what `decoded` would take of single uploads. None also where a sum is not finite: then each is looked
        at.

        Args:
            uploads: At least one, each with the declared arrays.
            server: The server's state.
        """
        return None

    def received(self, message: Message, engine: Engine) -> State:
        """Return what a device knows of the server's state: the message, unless that is packed."""
        return dict(message)

    def center(self, server: State) -> Mapping[str, Tensor]:
        """Return what the rule `clip` measures averaged arrays from; nothing where that is their median.

        A row that is not finite is not known.
        """
        return {}

    def updated(self, server: State, mean: Mapping[str, Tensor], weight: Mapping[str, Tensor]) -> State:
        """Return the server's new state from the averaged arrays, in float64, and the sums of their weights."""
        return {**server, **{name: stored_like(value, server[name]) for name, value in mean.items()}}

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """Make the server's new state from what arrived: `updated` with the mean, or with what a robust rule gives.

        A server may do more: `engine` runs its steps and `key` addresses its draws, as in `local_update`.

        Returns:
            The new state, the old one where nothing can be used, and the uploads that were refused.
        """
        formats = self.upload_format(server)
        if not formats:
            unexpected = {"algorithm": self.name}
            return server, [Rejection(upload.device, "nothing_expected", unexpected) for upload in uploads]
        good, rejected = usable(uploads, formats)
        if not good:
            return server, rejected
        formats, sent = self.averaged_format(server), good
        if self.packs:  # what was sound in its packing need not be so without
            good = sent = [as_declared(upload, self.upload_format(server)) for upload in good]
            if self.rule()[0] == "mean" and (sums := self.summed(sent, server)) is not None:
                if (mean := means(formats, sums)) is None:
                    return server, rejected
                return self.noted(self.updated(server, mean, sums.weights), sent), rejected
            unpacked = [Upload(upload.device, self.decoded(upload, server)) for upload in good]
            good, spoiled = usable(unpacked, formats)
            rejected += spoiled
        if not good:
            return server, rejected
        found = combine(formats, [upload.arrays for upload in good], *self.rule(), self.center(server))
        if found is None:
            return server, rejected
        refused = {rejection.device for rejection in rejected}
        return self.noted(self.updated(server, *found), [one for one in sent if one.device not in refused]), rejected

    def noted(self, server: State, uploads: Sequence[Upload]) -> State:
        """Return the server's state with what it keeps of single uploads: nothing, unless an algorithm does.

        It is not called where uploads are added unseen.
        """
        return server

    def worth(
        self, server: State, samples: NDArray[np.float64], counts: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64] | None:
        """Return what the scheduler weighs each device by in this round; None for its number of samples D_k.

        It is fixed when the round starts. A device that is worth 0 is not scheduled, such as one whose only report has
        arrived.

        Args:
            server: The server's state.
            samples: Training samples of each device.
            counts: Those of each class, (devices, classes); None where devices have not told.
        """
        return None

    def class_vectors(self, server: State) -> tuple[Tensor, Tensor] | None:
        """One vector per class (classes × features) for reports to show, and which classes have one; None for none."""
        return None

    def remark(self, server: State) -> str:
        """Return what the server found out, as a sentence for the end of a run: nothing, unless an algorithm does."""
        return ""

    def predictor(self, server: State, device: State) -> State:
        """The weights a device predicts with, whether it was chosen lately or not: its own model."""
        return device

    def why_not_exported(self) -> str | None:
        """Return why `predictor` is not all that a device predicts with, so that no file holds its model; or None."""
        return None

    def correct(self, server: State, devices: Sequence[int], states: Sequence[State], engine: Engine) -> list[int]:
        """Return how many of its own test samples each device predicts right: with `predictor`'s model.

        Override it where what a device predicts with is no state of its network.
        """
        return engine.correct(devices, [self.predictor(server, state) for state in states])

    def printed_flops(self, profile: DeviceProfile) -> float:
        """What a round is charged as printed: τ D C."""
        return float(self.local_steps * profile.samples * profile.model.flops)

    def real_flops(self, profile: DeviceProfile) -> float:
        """Everything a device computes in a round: τ forward and backward passes, unless an algorithm does more."""
        return training_flops(self.local_steps, profile)

    def classifier_flops(self, profile: DeviceProfile) -> float:
        """Return what a device computes next to its update to predict with what it was sent; nothing, for networks."""
        return 0.0

    def bits(self, profile: DeviceProfile) -> tuple[float, float] | None:
        """Return the bits that the scheduler plans with, up and down; None for those that the formats declare.

        Override it only for sizes that no format can say. `profile.model.layers` are the layers of the device's own
        network, and `profile.shared` those that all networks share. Where uploads turn out to have another size, the
        run says so.
        """
        return None

    def costs(self, profiles: Sequence[DeviceProfile], server: State, *, real_work: bool) -> list[Cost]:
        """Return what a round costs devices, by one rule for all algorithms.

        Args:
            profiles: What is known of each device.
            server: The server's state before the first round, which decides the sizes of messages.
            real_work: Charge all that is computed; otherwise τ D C operations, as printed.
        """
        up, down = self.upload_format(server), wire_size(self.broadcast_format(server))
        sizes: dict[int | None, float] = {}
        found = []
        for profile in profiles:
            held = profile.held_classes
            if held not in sizes:
                sizes[held] = wire_size(up, held)
            flops = self.real_flops(profile) if real_work else self.printed_flops(profile)
            found.append(Cost(flops + self.classifier_flops(profile), *(self.bits(profile) or (sizes[held], down))))
        return found

    def sgd(self) -> Sgd:
        """The local steps as the engine expects them."""
        from kfl.engine import Sgd

        head = self.learning_rate if self.head_learning_rate is None else self.head_learning_rate
        return Sgd(self.local_steps, self.learning_rate, head, self.momentum, self.batch_size)


def training_flops(steps: int, profile: DeviceProfile) -> float:
    """Real work of training steps: a forward pass, and a backward pass of twice its work.

    Args:
        steps: Passes over the local data.
        profile: The device's model and number of samples.

    Returns:
        Operations of one round.
    """
    return float(3 * steps * profile.samples * profile.model.flops)


def feature_flops(profile: DeviceProfile) -> float:
    """Real work of reading the features of all local samples: one pass through the body."""
    return float(profile.samples * profile.model.body_flops)


def require(condition: bool, field: str, value: object, expected: str) -> None:
    """Raise a ConfigError that names an algorithm's field unless the condition holds."""
    if not condition:
        raise ConfigError(f"algorithm.{field}", value, expected)


def check_rule(rule: str, trim: float) -> None:
    """Raise ConfigError for a rule that is none, or a share that leaves nothing over."""
    require(0 <= trim < 0.5, "trim", trim, "at least 0 and below 0.5")
    require(rule in RULES, "aggregation", rule, f"one of {', '.join(RULES)}")


@dataclass(frozen=True)
class QuantizedUploads(Algorithm):
    """An algorithm whose devices may upload in few bits: by the quantizers of `kfl` and `shared-stem`."""

    _: KW_ONLY
    bits_per_value: int = BITS_PER_VALUE
    """Bits of one value of an upload, from 1 to 32; below 32 the values really are quantized, and the bits charged."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(1 <= self.bits_per_value <= BITS_PER_VALUE, "bits_per_value", self.bits_per_value, "from 1 to 32")
        super().check()


@dataclass(frozen=True)
class RobustRules(Algorithm):
    """An algorithm whose server may combine uploads by a robust rule."""

    _: KW_ONLY
    aggregation: Aggregation = "mean"
    """How the server combines uploads: the mean, or against poisoned ones clip, median or trimmed."""
    trim: float = 0.25
    """Share of the uploads that trimmed leaves out at either end, value by value."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        check_rule(self.aggregation, self.trim)
        super().check()
