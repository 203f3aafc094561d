"""The base of algorithms whose server holds one model for all, or a part of it, and averages it over devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import RobustRules
from kfl.algorithms.uploads import ArrayFormat, Upload, UploadFormat

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import Engine, Objective, RoundKey
    from kfl.models import State

SAMPLES = "samples"
"""Name under which a device sends its number of training samples D_k, the weight of its upload."""


@dataclass(frozen=True)
class WeightAveraging(RobustRules):
    """An algorithm whose server averages weights: w = Σ_k D_k w_k / Σ_k D_k, or by a robust rule.

    McMahan et al. 2017, Algorithm 1. Running statistics are averaged like weights, and counters are rounded. A device
    puts the server's arrays over its own, trains, and sends them up again; every device, chosen or not, predicts with
    the server's newest.
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
        trained = self.train(devices, [{**state, **message} for state in states], engine, key)
        uploads = [
            weights_upload(device, {name: model[name] for name in message}, engine)
            for device, model in zip(devices, trained, strict=True)
        ]
        if self.keeps_shared:
            return trained, uploads
        return [{name: value for name, value in model.items() if name not in message} for model in trained], uploads

    def predictor(self, server: State, device: State) -> State:
        """What the device holds, with the server's newest arrays."""
        return {**device, **server} if device else server

    def upload_format(self, server: State) -> UploadFormat:
        """Arrays like the server's, and the number of samples behind them."""
        return weights_format(server)

    def center(self, server: State) -> Mapping[str, Tensor]:
        """The server's own arrays: robust rules see what a device's model differs from them."""
        return server


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
