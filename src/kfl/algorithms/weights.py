"""The base of algorithms whose server holds one model for all, or a part of it, and averages it over devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import QuantizedUploads, RobustRules, require
from kfl.algorithms.quantize import from_row, pack_updates, packed_format, to_row, unpack
from kfl.algorithms.uploads import BITS_PER_VALUE, ArrayFormat, Upload, UploadFormat

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import Engine, Objective, Proximal, RoundKey
    from kfl.models import State

SAMPLES = "samples"
"""Name under which a device sends its number of training samples D_k, the weight of its upload."""

FEEDBACK = "feedback/stem"
"""Where a device keeps what quantization took from its last update."""


@dataclass(frozen=True)
class WeightAveraging(QuantizedUploads, RobustRules):
    """An algorithm whose server averages weights: w = Σ_k D_k w_k / Σ_k D_k, or by a robust rule.

    McMahan et al. 2017, Algorithm 1. Running statistics are averaged like weights, and counters are rounded. A device
    puts the server's arrays over its own, trains, and sends them up again; every device, chosen or not, predicts with
    the server's newest.

    With fewer than 32 bits per value a device uploads the update of the weights, what it trained less what it received,
    and adds what quantization took from it to its next one, as in shared-stem. Running statistics and counters are
    sent as they are.
    """

    needs_equal_models: ClassVar[bool] = True
    predicts_alone: ClassVar[bool] = False
    keeps_shared: ClassVar[bool] = False
    """Whether devices remember the shared arrays as they trained them, too."""

    def server_init(self, engine: Engine, seed: int) -> State:
        """The common start."""
        return engine.initial(0, seed, common=True)

    def broadcast(self, server: State) -> Message:
        """All that the server holds."""
        return server

    def objective(self) -> Objective:
        """What chosen devices minimize: the loss F on their own samples."""
        from kfl.engine import Supervised

        return Supervised()

    def train(self, devices: Sequence[int], models: Sequence[State], engine: Engine, key: RoundKey) -> list[State]:
        """The local steps, from the server's arrays: τ on all weights."""
        return engine.train(devices, models, self.objective(), self.sgd(), key)

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """Train with the server's arrays in the place of the own ones, and send them up."""
        started = [{**without_feedback(state), **message} for state in states]
        trained = self.train(devices, started, engine, key)
        sent, kept = self._sent(message, trained, states)
        uploads = [weights_upload(device, arrays, engine) for device, arrays in zip(devices, sent, strict=True)]
        gone = () if self.keeps_shared else message
        after = [
            {**{name: value for name, value in model.items() if name not in gone}, **own}
            for model, own in zip(trained, kept, strict=True)
        ]
        return after, uploads

    def _sent(
        self, message: Message, trained: Sequence[State], states: Sequence[State]
    ) -> tuple[list[State], list[State]]:
        """What each device sends of its model, and what it keeps of the update for the next one."""
        weights = self._packed(message)
        exact = [{name: model[name] for name in message if name not in weights} for model in trained]
        if not weights or not trained:
            return exact, [{} for _ in trained]
        before, sizes = to_row(weights).double(), [value.numel() for value in weights.values()]
        updates = [to_row({name: model[name] for name in weights}).double() - before for model in trained]
        like = next(iter(weights.values()))
        kept = [state.get(FEEDBACK, like.new_zeros(sum(sizes))) for state in states]
        sent, lost = pack_updates(updates, kept, sizes, self.bits_per_value)
        return [{**packed, **more} for packed, more in zip(sent, exact, strict=True)], [
            {FEEDBACK: own} for own in lost.to(like)
        ]

    def _packed(self, server: Mapping[str, Tensor]) -> State:
        """The arrays that travel in few bits: none with 32, and never running statistics and counters."""
        return trained_weights(server) if self.packs else {}

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        right = "mean or clip where bits_per_value is 1: signs alone leave a median nothing to choose from"
        require(self.bits_per_value > 1 or self.aggregation in ("mean", "clip"), "aggregation", self.aggregation, right)
        super().check()

    def predictor(self, server: State, device: State) -> State:
        """What the device holds, with the server's newest arrays."""
        return {**without_feedback(device), **server} if device else server

    @property
    def packs(self) -> bool:
        """Whether updates go up in few bits."""
        return self.bits_per_value < BITS_PER_VALUE

    def upload_format(self, server: State) -> UploadFormat:
        """Arrays like the server's, or the packed update of its weights, and the number of samples behind them."""
        weights = self._packed(server)
        packed = packed_format([value.numel() for value in weights.values()], self.bits_per_value) if weights else {}
        return {**packed, **weights_format({name: value for name, value in server.items() if name not in weights})}

    def averaged_format(self, server: State) -> UploadFormat:
        """Arrays like the server's."""
        return weights_format({**server, **{name: value.double() for name, value in self._packed(server).items()}})

    def decoded(self, upload: Upload, server: State) -> Mapping[str, Tensor]:
        """The update of the weights as it arrives after its few bits."""
        weights = self._packed(server)
        if not weights:
            return upload.arrays
        row = unpack(upload.arrays, [value.numel() for value in weights.values()], self.bits_per_value)
        return {**upload.arrays, **from_row(row, {name: tuple(value.shape) for name, value in weights.items()})}

    def center(self, server: State) -> Mapping[str, Tensor]:
        """What robust rules measure from: the server's own arrays, or no update at all."""
        return {**server, **{name: value.new_zeros(value.shape) for name, value in self._packed(server).items()}}

    def updated(self, server: State, mean: Mapping[str, Tensor], weight: Mapping[str, Tensor]) -> State:
        """The mean in the place of the server's arrays, or the mean update on top of them."""
        moved = {name: value.double() + mean[name].to(value.device) for name, value in self._packed(server).items()}
        return super().updated(server, {**mean, **moved}, weight)


def without_feedback(state: Mapping[str, Tensor]) -> State:
    """Return a device's state without what quantization took from its last update."""
    return {name: value for name, value in state.items() if name != FEEDBACK}


def trained_weights(state: Mapping[str, Tensor]) -> State:
    """Return the entries of a model's state that gradients move: no running statistics and no counters."""
    return {
        name: value
        for name, value in state.items()
        if value.is_floating_point() and not name.rpartition(".")[2].startswith("running_")
    }


def proximal(weight: float, center: Mapping[str, Tensor], slopes: Tensor | None = None) -> Proximal:
    """Return the loss F(w) + μ/2 ‖w − w*‖² + ⟨s, w⟩ over all weights of a model.

    Args:
        weight: μ.
        center: w*, a model's state.
        slopes: s of each device, (devices, weights); None for none.
    """
    from kfl.engine import Proximal

    moved = trained_weights(center)
    return Proximal(weight, tuple(moved), to_row(moved), slopes)


def weights_format(server: Mapping[str, Tensor]) -> UploadFormat:
    """Declare an upload of arrays like the server's own, weighed by the number of samples behind them."""
    values = {name: ArrayFormat.like(value, weight=SAMPLES) for name, value in server.items()}
    return {**values, SAMPLES: ArrayFormat((), "float64", "samples")}


def weights_upload(device: int, weights: Mapping[str, Tensor], engine: Engine) -> Upload:
    """Return a device's weights with its number of samples."""
    import torch

    samples = torch.tensor(float(engine.profile(device).samples), dtype=torch.float64)
    return Upload(device, {**weights, SAMPLES: samples})


def part_of(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the entries whose name starts with `prefix`: "body." or "head."."""
    return {name: value for name, value in state.items() if name.startswith(prefix)}
