"""FedRep: one body for all, one head for each device.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning,
ICML 2021, Algorithm 1.

The server sends its body φ. A chosen device first takes steps on its own head with the body frozen, then steps
on the body with the head frozen, and uploads the body; the server averages the bodies. Any device predicts with
the server's current body and its own head, so an unchosen device's predictions change from round to round.

Where we decide: the steps of both parts together are `local_steps`, the same total as in the other algorithms,
and by default the head takes the larger half: 3 of 5 was the best of the four splits on CIFAR-10, on a seed that
is not reported; a single head step starts far slower. Bodies are weighted by D_k, as the authors' code does; with
equal D_k, as in their paper, this is the plain mean. All models start from one common draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.averaging import WeightAveraging, part_of, weights_upload
from kfl.algorithms.base import BITS_PER_VALUE, Cost, PlotStyle, require
from kfl.algorithms.uploads import Upload

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class FedRep(WeightAveraging):
    """FedRep: a shared body, averaged, and a head that stays on its device.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedRep(head_steps=3)))
    >>> history.summary["algorithm"]
    'fedrep'
    """

    name: ClassVar[str] = "fedrep"
    style: ClassVar[PlotStyle | None] = PlotStyle("#00805a", (8, 2))
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("head_steps", (1, 3, 4))

    head_steps: int | None = None
    """How many of the local steps train the head, before the body; none for half of them, rounded up."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(self.local_steps >= 2, "local_steps", self.local_steps, "2 or more: one for the head, one for the body")
        head = self.head_steps
        expected = f"at least 1 and below local_steps, which is {self.local_steps}, or none"
        require(head is None or 1 <= head < self.local_steps, "head_steps", head, expected)

    def split_steps(self) -> tuple[int, int]:
        """Steps of the head and of the body; together τ.

        >>> FedRep(local_steps=5).split_steps()
        (3, 2)
        """
        head = (self.local_steps + 1) // 2 if self.head_steps is None else self.head_steps
        return head, self.local_steps - head

    def server_init(self, engine: Engine, seed: int) -> State:
        """The body of the common start."""
        return part_of(engine.initial(0, seed, common=True), "body.")

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """The head of the common start."""
        return part_of(engine.initial(device, seed, common=True), "head.")

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """Head steps with the body frozen, then body steps with the head frozen; the body goes up."""
        from kfl.engine import Supervised

        sgd = self.sgd()
        head_steps, body_steps = self.split_steps()
        # A rate of 0 freezes a part. Each part's momentum starts fresh.
        heads = replace(sgd, steps=head_steps, body_rate=0.0)
        bodies = replace(sgd, steps=body_steps, head_rate=0.0)
        models: list[State] = [{**message, **state} for state in states]
        models = engine.train(devices, models, Supervised(), heads, key)
        models = engine.train(devices, models, Supervised(), bodies, replace(key, phase=1))
        uploads = [
            weights_upload(device, part_of(model, "body."), engine)
            for device, model in zip(devices, models, strict=True)
        ]
        return [part_of(model, "head.") for model in models], uploads

    def predictor(self, server: State, device: State) -> State:
        """The server's current body and the device's own head."""
        return {**server, **device}

    def cost(self, profile: DeviceProfile, *, real_work: bool) -> Cost:
        """τ passes, and the body up and down.

        With `real_work`, a head step is a forward pass and the head's backward pass; a body step is a forward
        pass, the body's backward pass and half the head's (gradients pass through it, its weights need none).
        """
        head_steps, body_steps = self.split_steps()
        whole, body = profile.model.flops, profile.model.body_flops
        head = whole - body
        of_head_step = whole + 2 * head if real_work else whole
        of_body_step = whole + 2 * body + head if real_work else whole
        flops = profile.samples * (head_steps * of_head_step + body_steps * of_body_step)
        bits = profile.model.body_parameters * BITS_PER_VALUE
        return Cost(float(flops), bits, bits)
