"""SCAFFOLD: federated averaging whose local steps are corrected for how a device's gradient differs from the fleet's.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020, Algorithm 1 with option II.

The server holds w and a control variate c, a device its own c_k, zero at first. A chosen device takes K steps

    y ← y − η (∇F_k(y) − c_k + c),  from y = w;    c_k⁺ = c_k − c + (w − y) / (K η)

and uploads y and c_k⁺ − c_k; the server averages the models and keeps c at the mean of the devices' variates.

Where we decide: steps have the momentum m of the other algorithms, so K η becomes η Σ_{j ≤ K} (1 − m^j)/(1 − m), by
which c_k⁺ stays a weighted mean of gradients; a global step of 1, models weighed by D_k as in federated averaging; c is
the mean over the devices that have taken part (the paper divides by all, which a fleet's server need not know).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import RobustRules
from kfl.algorithms.quantize import to_row
from kfl.algorithms.uploads import ArrayFormat, Upload, UploadFormat
from kfl.algorithms.weights import SAMPLES, proximal, trained_weights, weights_format, weights_upload

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import Engine, RoundKey
    from kfl.models import State

CONTROL = "control/"
"""Prefix of control variates."""
FIRST = "first"
"""1 in a device's first upload, 0 in later ones; on the server, how many devices have taken part."""

PRESENT = "present"


@dataclass(frozen=True)
class Scaffold(RobustRules):
    """Federated averaging with control variates against the drift of local models.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Scaffold()))
    >>> history.summary["algorithm"]
    'scaffold'
    """

    name: ClassVar[str] = "scaffold"
    needs_equal_models: ClassVar[bool] = True
    predicts_alone: ClassVar[bool] = False

    def server_init(self, engine: Engine, seed: int) -> State:
        """The common start, and control variates of zero."""
        import torch

        return {**(start := engine.initial(0, seed, common=True)), **_zeros(start), FIRST: torch.tensor(0.0)}

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """Control variates of zero."""
        return _zeros(engine.initial(device, seed, common=True))

    def broadcast(self, server: State) -> Message:
        """The model and the common control variates."""
        return {name: value for name, value in server.items() if name != FIRST}

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """K corrected steps, and the control variates anew."""
        import torch

        if not devices:
            return [], []
        model, common = _split(message)
        own = [_split(state)[1] for state in states]
        names = list(trained_weights(model))  # a state read from a file has an order of its own
        slopes = torch.stack([to_row({name: common[name] - one[name] for name in names}) for one in own])
        objective, sgd = proximal(0.0, model, slopes), self.sgd()
        trained = engine.train(devices, [dict(model) for _ in devices], objective, sgd, key)
        found, uploads = [], []
        for device, before, after in zip(devices, own, trained, strict=True):
            length = self._length(engine.profile(device).samples)
            # c_k⁺ − c_k; a parameter with a rate of 0 has not moved and keeps its variate.
            change = {
                name: (model[name] - after[name]) / (rate * length) - common[name] if rate else torch.zeros_like(value)
                for name, value in before.items()
                for rate in [objective.rate(name, sgd)]
            }
            first = not any(bool(value.any()) for value in before.values())
            upload = weights_upload(device, after, engine)
            sent = {**upload.arrays, **_prefixed(change), FIRST: torch.tensor(float(first))}
            uploads.append(Upload(device, sent))
            found.append(_prefixed({name: before[name] + value for name, value in change.items()}))
        return found, uploads

    def predictor(self, server: State, device: State) -> State:
        """The server's model."""
        return _split(server)[0]

    def upload_format(self, server: State) -> UploadFormat:
        """A model with the number of samples behind it, and the change of the control variates."""
        model, control = _split(server)
        changes = {name: ArrayFormat.like(value) for name, value in _prefixed(control).items()}
        return {**weights_format(model), **changes, FIRST: ArrayFormat(())}

    def averaged_format(self, server: State) -> UploadFormat:
        """The same; control variates are averaged over devices that have samples at all."""
        found = self.upload_format(server)
        of_device = {name: replace(form, weight=PRESENT) for name, form in found.items() if form.weight != SAMPLES}
        return {**found, **of_device, SAMPLES: found[SAMPLES], PRESENT: ArrayFormat((), "int64", "samples")}

    def decoded(self, upload: Upload, server: State) -> Mapping[str, Tensor]:
        """The arrays as they are, and whether the device has samples."""
        return {**upload.arrays, PRESENT: (upload.arrays[SAMPLES] > 0).long()}

    def center(self, server: State) -> Mapping[str, Tensor]:
        """The server's model: robust rules see what a device's model differs from it."""
        return _split(server)[0]

    def updated(self, server: State, mean: Mapping[str, Tensor], weight: Mapping[str, Tensor]) -> State:
        """The mean model, and control variates moved by what devices changed."""
        model, control = _split(server)
        devices, known = float(weight[PRESENT]), float(server[FIRST])
        taken = known + devices * float(mean[FIRST])
        found = super().updated(server, {name: mean[name] for name in model}, weight)
        for name, value in control.items():
            total = known * value + devices * mean[CONTROL + name].to(value)
            found[CONTROL + name] = total / max(taken, 1.0)
        return {**found, FIRST: server[FIRST].new_tensor(taken)}

    def _length(self, samples: int) -> float:
        """Σ_{j ≤ K} (1 − m^j)/(1 − m): the steps K of a round, with what momentum makes of each."""
        steps = self.local_steps * (1 if self.batch_size is None else -(-samples // self.batch_size))
        m = self.momentum
        return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


def _split(state: Mapping[str, Tensor]) -> tuple[State, State]:
    """The model of a state, and its control variates without their prefix."""
    control = {name.removeprefix(CONTROL): value for name, value in state.items() if name.startswith(CONTROL)}
    return {name: value for name, value in state.items() if not name.startswith(CONTROL) and name != FIRST}, control


def _prefixed(control: Mapping[str, Tensor]) -> State:
    return {CONTROL + name: value for name, value in control.items()}


def _zeros(model: Mapping[str, Tensor]) -> State:
    """A variate for everything that gradients move."""
    return {CONTROL + name: value.new_zeros(value.shape) for name, value in trained_weights(model).items()}
