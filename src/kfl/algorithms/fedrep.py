"""FedRep: one body for all, one head for each device.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning,
ICML 2021, Algorithm 1.

The server sends its body φ. A chosen device first takes steps on its own head with the body frozen, then steps
on the body with the head frozen, and uploads the body; the server averages the bodies. Any device predicts with
the server's current body and its own head, so an unchosen device's predictions change from round to round.

The authors give the head its steps on top of the body's: in their scripts (github.com/lgcollins/FedRep) 10 passes
over the data with the body frozen, then 5 with the head frozen, on CIFAR-10 with two classes for each of 100 devices
10 and 1, in small batches.

Where we decide: the body takes `local_steps`, τ, as all weights do in the other algorithms, and the head as many on
top; `head_steps` and `body_steps` change either. A pass is a full-batch step, as everywhere here. Bodies are weighted
by D_k, as their code does; with equal D_k, as in their paper, this is the plain mean. Their code trains the heads of
all devices once more after the last round; here no device trains after the last round. All models start from one common
draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import require
from kfl.algorithms.weights import WeightAveraging, part_of

if TYPE_CHECKING:
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class FedRep(WeightAveraging):
    """FedRep: a shared body, averaged, and a head that stays on its device.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedRep(head_steps=10)))
    >>> history.summary["algorithm"]
    'fedrep'
    """

    name: ClassVar[str] = "fedrep"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("head_steps", (1, 5, 10))

    head_steps: int | None = None
    """Steps of the head with the body frozen, before the body's; none for as many as local_steps."""
    body_steps: int | None = None
    """Steps of the body with the head frozen; none for as many as local_steps."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        for name, steps in (("head_steps", self.head_steps), ("body_steps", self.body_steps)):
            require(steps is None or steps >= 1, name, steps, "1 or more, or none for as many as local_steps")

    def steps(self) -> tuple[int, int]:
        """Steps of the head and of the body.

        >>> FedRep(local_steps=5).steps(), FedRep(head_steps=10, body_steps=1).steps()
        ((5, 5), (10, 1))
        """
        return (
            self.local_steps if self.head_steps is None else self.head_steps,
            self.local_steps if self.body_steps is None else self.body_steps,
        )

    def server_init(self, engine: Engine, seed: int) -> State:
        """The body of the common start."""
        return part_of(engine.initial(0, seed, common=True), "body.")

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """The head of the common start."""
        return part_of(engine.initial(device, seed, common=True), "head.")

    def train(self, devices: Sequence[int], models: Sequence[State], engine: Engine, key: RoundKey) -> list[State]:
        """Head steps with the body frozen, then body steps with the head frozen."""
        sgd, (head_steps, body_steps) = self.sgd(), self.steps()
        # A rate of 0 freezes a part. Each part's momentum starts fresh.
        heads = replace(sgd, steps=head_steps, body_rate=0.0)
        bodies = replace(sgd, steps=body_steps, head_rate=0.0)
        models = engine.train(devices, models, self.objective(), heads, key)
        return engine.train(devices, models, self.objective(), bodies, replace(key, phase=1))

    def real_flops(self, profile: DeviceProfile) -> float:
        """Each part's steps, without the gradients of the other part's weights.

        A head step is a forward pass and the head's backward pass; a body step is a forward pass, the body's
        backward pass and half the head's (gradients pass through it, its weights need none). Every step is a pass
        over the data, as in the authors' code: that features stay the same while the body is frozen is not used.
        """
        head_steps, body_steps = self.steps()
        whole, body = profile.model.flops, profile.model.body_flops
        head = whole - body
        return float(profile.samples * (head_steps * (whole + 2 * head) + body_steps * (whole + 2 * body + head)))
