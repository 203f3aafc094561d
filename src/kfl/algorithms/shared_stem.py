"""A shared stem: the first layers, which all networks have alike, are learned together; everything above stays
personal.

Networks of different widths often begin with the same layers: in the paper's CNN both convolutions, 2,872 values.
LG-FedAvg (Liang et al. 2020) averages such layers. Here they are averaged from *updates of few bits* with error
feedback (Seide et al. 2014; Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD, ICML 2019), so that an
upload is smaller than knowledge, and a device's features may be pulled to class targets while it trains.

The server holds the stem s. In a round, with Q for quantization to `bits_per_value` bits (`kfl.algorithms.quantize`):

    down      ŝ = s in `bits_down` bits per value
    device k  puts ŝ under its own upper layers, takes τ steps on all of them (F, or F + λL with a pull)
              u = trained stem − ŝ + e_k,   sends Q(u),   keeps e_k = u − Q(u), its error feedback, for its next round
    server    s ← s + Σ_k D_k Q(u_k) / Σ_k D_k

The stem starts from one draw of the seed that all share without an upload. A device predicts with the network it
trained last, its own stem under its own upper layers: they were trained together. (On a development seed the
newest stem under upper layers that have not seen it was no better.) Statistics of normalization layers stay on the
device.

**Which layers.** From the input upwards, whole layers whose shapes agree on all devices, found from the networks
themselves, until the first that differs or no longer fits `budget_bits`. Where not even the first one fits, nothing
could be shared, and that is an error which says what would fit.

**Pull.** `random` and `simplex` are the fixed targets of `fixed-knowledge` and cost no upload; `knowledge` is KFL's,
whose class means are then uploaded and charged too.

**Against poison** `aggregation` takes the rules of `kfl.algorithms.aggregation` on whole updates. With one bit per
value, `median` and `trimmed` would decide between two numbers in each coordinate, so they are refused there; `clip`
works with any.

**Privacy.** With `clip_norm` S and `noise_multiplier` z the update of a round is scaled down to norm S and every
number of it gets Gaussian noise of standard deviation 2 S z before it is quantized. Whatever a device's samples are,
its clipped update lies in the ball of radius S, so this covers its whole data and its training
(`kfl.algorithms.privacy`). The error feedback is made of noisy numbers only. Class means would go out without noise,
so `pull = knowledge` is refused with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from kfl.algorithms.aggregation import Aggregation
from kfl.algorithms.base import Algorithm, check_rule, feature_flops, require, training_flops
from kfl.algorithms.prototypes import empty_knowledge, knowledge_format, known_rows, renewed
from kfl.algorithms.quantize import from_row, pack, pack_updates, packed_bits, packed_format, to_row, unpack
from kfl.algorithms.targets import fixed_targets, pull_to
from kfl.algorithms.uploads import BITS_PER_VALUE, ArrayFormat, Upload, UploadFormat
from kfl.algorithms.weights import FEEDBACK, SAMPLES, weights_upload, without_feedback
from kfl.core.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, FeatureTargets, RoundKey
    from kfl.models import FleetModels, Layer, State

Pull = Literal["none", "random", "simplex", "knowledge"]
"""Where the features of a class are pulled to while a device trains."""
TWINS = {"none": "local", "random": "fixed-knowledge", "simplex": "simplex", "knowledge": "self-knowledge"}
"""The algorithm with each pull that uploads nothing, by its label in `kfl.comparison.twins`."""

DEPTH = "depth"
"""Name under which a message says how many layers the stem has."""
KNOWLEDGE = ("knowledge", "known")


@dataclass(frozen=True)
class SharedStem(Algorithm):
    """The layers all networks begin with, averaged from updates of a few bits per value; the rest stays personal.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, model="cnn-16,cnn-24", algorithm=kfl.SharedStem()))
    >>> history.summary["algorithm"]
    'shared-stem'
    """

    name: ClassVar[str] = "shared-stem"
    server_needs_models: ClassVar[bool] = True
    noise_covers_training: ClassVar[bool] = True
    """Whole updates are clipped, so noise on them protects whatever they were trained on."""
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("knowledge_weight", (0.01, 1 / 32, 0.1))

    bits_per_value: int = 4
    """Bits of one value of an uploaded update: 1 sends signs, 32 the update as it is; 4 do nearly as well as 32."""
    bits_down: int = 7
    """Bits of one value of the stem on its way down, from 1 to 32."""
    budget_bits: int | None = None
    """Largest upload of the stem in bits; none for what knowledge takes, 32 bits for each class and feature."""
    pull: Pull = "random"
    """Targets of the features: none, fixed random points, a simplex, or shared knowledge, which is uploaded too."""
    knowledge_weight: float = 1 / 32
    """Weight λ of the pull, as in kfl."""
    scale: float = 3.0
    """Euclidean norm of each fixed target, as in fixed-knowledge."""
    aggregation: Aggregation = "mean"
    """How the server combines updates: the mean, or against poisoned ones clip, median or trimmed."""
    trim: float = 0.25
    """Share of the updates that trimmed leaves out at either end, coordinate by coordinate."""
    clip_norm: float | None = None
    """Largest norm of one device's update in a round; none for no limit. Needed for noise."""
    noise_multiplier: float = 0.0
    """Gaussian noise on updates, relative to what a device's data can change; 0 for none, 1 is strong."""

    def twin(self) -> str:
        """Its pull alone."""
        return TWINS[self.pull]

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        inf, clip, noise = float("inf"), self.clip_norm, self.noise_multiplier
        require(1 <= self.bits_per_value <= 32, "bits_per_value", self.bits_per_value, "from 1 to 32")
        require(1 <= self.bits_down <= 32, "bits_down", self.bits_down, "from 1 to 32")
        require(
            self.budget_bits is None or self.budget_bits >= 1, "budget_bits", self.budget_bits, "1 or more, or none"
        )
        require(self.pull in get_args(Pull), "pull", self.pull, f"one of {', '.join(get_args(Pull))}")
        require(0 <= self.knowledge_weight < inf, "knowledge_weight", self.knowledge_weight, "0 or more")
        require(0 < self.scale < inf, "scale", self.scale, "a number above 0")
        check_rule(self.aggregation, self.trim)
        require(
            self.bits_per_value > 1 or self.aggregation in ("mean", "clip"),
            "aggregation",
            self.aggregation,
            "mean or clip where bits_per_value is 1: signs alone leave a median nothing to choose from",
        )
        require(clip is None or 0 < clip < inf, "clip_norm", clip, "a number above 0, or none")
        require(0 <= noise < inf, "noise_multiplier", noise, "0 or more")
        require(noise == 0 or clip is not None, "clip_norm", clip, "set when noise_multiplier is above 0")
        require(
            noise == 0 or self.pull != "knowledge",
            "pull",
            self.pull,
            "none, random or simplex when noise_multiplier is above 0: class means would be sent without noise",
        )

    def check_models(self, models: FleetModels) -> None:
        """Raise ModelError for networks of which nothing could be shared."""
        profile, layers = models.profiles[0], models.shared.stem
        if self.stem(layers, profile.classes, profile.features):
            return
        if not layers:
            raise ModelError(
                "The algorithm shared-stem averages the first layers of the networks, but these differ in shape from "
                "device to device: give networks that begin alike, such as --model cnn, or leave shared-stem out."
            )
        first, budget = layers[0], self._budget(profile.classes, profile.features)
        needed = packed_bits(_sizes([first]), self.bits_per_value)
        raise ModelError(
            f"The algorithm shared-stem can share nothing: the first layer of the networks has {first.values:,} "
            f"values, {needed:,} bits at {self.bits_per_value} per value, but an upload may have {budget:,}. "
            "Give networks that begin with a small layer, such as --model cnn, or a larger upload: "
            f"--algorithm.budget-bits {needed}."
        )

    def stem(self, layers: Sequence[Layer], classes: int, features: int) -> list[Layer]:
        """The layers that are shared: from the input upwards, as many as fit the budget."""
        chosen: list[Layer] = []
        for layer in layers:
            if packed_bits(_sizes([*chosen, layer]), self.bits_per_value) > self._budget(classes, features):
                break
            chosen.append(layer)
        return chosen

    def _budget(self, classes: int, features: int) -> int:
        return classes * features * BITS_PER_VALUE if self.budget_bits is None else self.budget_bits

    def server_init(self, engine: Engine, seed: int) -> State:
        """The stem of the common start; with KFL's pull, no knowledge of any class."""
        start = engine.initial(0, seed, common=True)
        stem = self.stem(engine.shared.stem, engine.classes, engine.features)
        held: State = {name: start[name] for layer in stem for name, _ in layer.arrays}
        return {**held, **(empty_knowledge(engine.classes, engine.features) if self.pull == "knowledge" else {})}

    def broadcast(self, server: State) -> Message:
        """The stem in few bits, how many layers it has, and knowledge where devices are pulled to it."""
        import torch

        stem = _stem_of(server)
        depth = len({name.rpartition(".")[0] for name in stem})
        packed = pack(to_row(stem), [value.numel() for value in stem.values()], self.bits_down)
        knowledge = {name: server[name] for name in KNOWLEDGE if name in server}
        return {DEPTH: torch.tensor(depth), **packed, **knowledge}

    def broadcast_format(self, server: State) -> UploadFormat:
        """The stem in few bits; with KFL's pull also the knowledge, and a bit per class that says which are known."""
        formats = packed_format([value.numel() for value in _stem_of(server).values()], self.bits_down)
        return {**formats, **{name: ArrayFormat.like(server[name]) for name in KNOWLEDGE if name in server}}

    def received(self, message: Message, engine: Engine) -> State:
        """The stem as it arrived, in float64 on the CPU, and the knowledge.

        A device of a fleet knows its own network only, the simulator all of them: the message says how deep.
        """
        shapes = {name: shape for layer in engine.shared.stem[: int(message[DEPTH])] for name, shape in layer.arrays}
        sizes = [math.prod(shape) for shape in shapes.values()]
        if not _fits(message, packed_format(sizes, self.bits_down)):
            raise ModelError(
                f"The stem of {sum(sizes):,} values that this network begins with is not the one that was received: "
                "the server's file names other networks than this device has."
            )
        stem = from_row(unpack(message, sizes, self.bits_down), shapes)
        return {**stem, **{name: message[name] for name in KNOWLEDGE if name in message}}

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps of the received stem under the device's own layers; the stem's update goes up in few bits."""
        import torch

        from kfl.engine import Supervised

        if not devices:
            return [], []
        received = _stem_of(self.received(message, engine))
        like, sizes = states[0][next(iter(received))], [value.numel() for value in received.values()]
        stem = {name: value.to(like) for name, value in received.items()}
        models: list[State] = [{**without_feedback(state), **stem} for state in states]
        pull = self._pull(message, models[0], engine, key)
        trained = engine.train(devices, models, Supervised(pull), self.sgd(), key)
        # To the server's CPU, all at once: every copy from a GPU waits for all the work queued before it.
        rows = torch.stack([to_row({name: model[name] for name in stem}) for model in trained]).double().cpu()
        kept = [state.get(FEEDBACK, like.new_zeros(sum(sizes))) for state in states]
        before = to_row(received)
        updates = [self._guarded(row - before, device, key) for device, row in zip(devices, rows, strict=True)]
        sent, lost = pack_updates(updates, kept, sizes, self.bits_per_value)
        after: list[State] = [{**model, FEEDBACK: own} for model, own in zip(trained, lost.to(like), strict=True)]
        knowledge = self._knowledge(devices, trained, engine)
        uploads = [
            weights_upload(device, {**arrays, **more}, engine)
            for device, arrays, more in zip(devices, sent, knowledge, strict=True)
        ]
        return after, uploads

    def _knowledge(self, devices: Sequence[int], trained: Sequence[State], engine: Engine) -> list[dict[str, Tensor]]:
        """What devices upload next to the stem: with KFL's pull, the mean feature of each class."""
        if self.pull != "knowledge":
            return [{} for _ in devices]
        return [{"means": own.means, "counts": own.counts} for own in engine.class_statistics(devices, trained).cpu()]

    def _guarded(self, update: Tensor, device: int, key: RoundKey) -> Tensor:
        """A device's update as it may leave the device: of bounded norm and with noise, where asked for."""
        import torch

        if self.clip_norm is None:
            return update
        norm = float(update.norm())
        update = update * min(1.0, self.clip_norm / norm) if norm > 0 else update
        if self.noise_multiplier == 0:
            return update
        draw = torch.Generator().manual_seed(key.secret_seed("privacy noise", device))
        noise = torch.randn(len(update), generator=draw, dtype=torch.float64)
        return update + 2 * self.clip_norm * self.noise_multiplier * noise

    def _pull(self, message: Message, beside: State, engine: Engine, key: RoundKey) -> FeatureTargets | None:
        from kfl.engine import FeatureTargets

        if self.pull == "none":
            return None
        if self.pull == "knowledge":
            return FeatureTargets(self.knowledge_weight, message["knowledge"], message["known"])
        targets = fixed_targets(self.pull, engine.classes, engine.features, self.scale, key.seed)
        return pull_to(targets, self.knowledge_weight, beside)

    def upload_format(self, server: State) -> UploadFormat:
        """The packed update of the stem and the number of samples behind it; class means with KFL's pull.

        As everywhere, the number of samples is not charged: it is sent once and never changes.
        """
        packed = packed_format([value.numel() for value in _stem_of(server).values()], self.bits_per_value)
        return {**packed, SAMPLES: ArrayFormat((), "float64", "samples"), **self._knowledge_format(server)}

    def averaged_format(self, server: State) -> UploadFormat:
        """The update of each array of the stem, and class means with KFL's pull."""
        stem = _stem_of(server)
        updates = {name: ArrayFormat(tuple(value.shape), "float64", weight=SAMPLES) for name, value in stem.items()}
        return {**updates, SAMPLES: ArrayFormat((), "float64", "samples"), **self._knowledge_format(server)}

    def _knowledge_format(self, server: State) -> UploadFormat:
        return knowledge_format(server, held_rows=True) if "knowledge" in server else {}

    def decoded(self, upload: Upload, server: State) -> Mapping[str, Tensor]:
        """The update of the stem as it arrives after its few bits, so that error feedback holds."""
        stem = _stem_of(server)
        row = unpack(upload.arrays, [value.numel() for value in stem.values()], self.bits_per_value)
        return {**upload.arrays, **from_row(row, {name: tuple(value.shape) for name, value in stem.items()})}

    def center(self, server: State) -> Mapping[str, Tensor]:
        """No update at all; of class means, the last knowledge."""
        nothing = {name: value.new_zeros(value.shape) for name, value in _stem_of(server).items()}
        return {**nothing, **(known_rows(server) if "knowledge" in server else {})}

    def updated(self, server: State, mean: Mapping[str, Tensor], weight: Mapping[str, Tensor]) -> State:
        """s ← s + Σ_k D_k u_k / Σ_k D_k, or what a robust rule makes of the updates; new class means."""
        moved = {
            name: (value.double() + mean[name].to(value.device)).to(value.dtype).nan_to_num()
            for name, value in _stem_of(server).items()
        }
        if "knowledge" in server:
            server = renewed(server, mean["means"], weight["counts"] > 0, memory=True)
        return {**server, **moved}

    def class_vectors(self, server: State) -> tuple[Tensor, Tensor] | None:
        """The knowledge, with KFL's pull."""
        return (server["knowledge"], server["known"]) if "knowledge" in server else None

    def predictor(self, server: State, device: State) -> State:
        """The network that the device trained last."""
        return without_feedback(device)

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps; with KFL's pull also the pass that reads the features."""
        return training_flops(self.local_steps, profile) + (feature_flops(profile) if self.pull == "knowledge" else 0)


def _fits(message: Message, formats: UploadFormat) -> bool:
    """Whether a message has the packed arrays that are expected, in their sizes."""
    return all(name in message and tuple(message[name].shape) == form.shape for name, form in formats.items())


def _sizes(layers: Sequence[Layer]) -> list[int]:
    """Values of each array of some layers."""
    return [math.prod(shape) for layer in layers for _, shape in layer.arrays]


def _stem_of(server: State) -> State:
    return {name: value for name, value in server.items() if name not in KNOWLEDGE}
