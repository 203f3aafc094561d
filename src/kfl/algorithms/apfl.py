"""APFL: each device mixes a personal model with the shared one, and learns how much of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, arXiv:2003.13461, 2020, Algorithm 1.

A device holds a personal model v and a mixing weight α. When chosen it receives the global model w, and in each
local step, with v̄ = α v + (1 − α) w,

    w ← w − η ∇F(w),    v ← v − η ∇_v F(v̄) = v − η α ∇F(v̄),    α ← α − η_α ⟨v − w, ∇F(v̄)⟩, clipped to [0, 1].

It uploads w alone; the server averages as in federated averaging. A device predicts with its v mixed with the
server's *current* w, so an unchosen device's predictions change from round to round.

Where we decide: all three use the momentum of the other algorithms, fresh in every round; α has a learning rate
of its own and moves in every local step as printed (the authors' code moves it once per round, and adds a pull
of 0.02 α toward 0 that their paper does not have); w is weighted by D_k. All models start from one common draw.
Its start and rate were the best of the eight pairs tried on CIFAR-10 that move α, on a seed that is not reported,
and level with the best that does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import require, training_flops
from kfl.algorithms.weights import WeightAveraging

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.engine import DeviceProfile, Engine, Objective
    from kfl.models import State


@dataclass(frozen=True)
class Apfl(WeightAveraging):
    """APFL: a personal model, mixed with the global one by a weight that is learned.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Apfl(mixing=0.75)))
    >>> history.summary["algorithm"]
    'apfl'
    """

    name: ClassVar[str] = "apfl"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("mixing", (0.5, 0.75, 0.9))

    mixing: float = 0.9
    """Weight α of the personal model before the first round; 1 is local-only, 0 is federated averaging."""
    mixing_rate: float = 0.001
    """Learning rate of α; 0 keeps it as it is. From 0.005 on, α soon sits at 0 or 1 and accuracy suffers."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        require(0 <= self.mixing <= 1, "mixing", self.mixing, "between 0 and 1")
        require(0 <= self.mixing_rate < float("inf"), "mixing_rate", self.mixing_rate, "0 or more")

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """A personal model, the common start too, and α."""
        import torch

        from kfl.engine.objectives import MIXING

        start = engine.initial(device, seed, common=True)
        like = next(value for value in start.values() if value.is_floating_point())
        mixing = torch.tensor(self.mixing, dtype=like.dtype, device=like.device)
        return {**_as_personal(start), MIXING: mixing}

    def objective(self) -> Objective:
        """The losses of both models, and α between them."""
        from kfl.engine import Mixture

        return Mixture(self.mixing_rate)

    def predictor(self, server: State, device: State) -> State:
        """α v + (1 − α) w with the server's current w."""
        from kfl.engine.objectives import MIXING, PERSONAL

        mixing = device[MIXING]
        mixed = {}
        for name, shared in server.items():
            own = device[PERSONAL + name]
            mixed[name] = mixing * own + (1 - mixing) * shared if own.is_floating_point() else own
        return mixed

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps of two models: the shared one and the mixed one."""
        return 2 * training_flops(self.local_steps, profile)


def _as_personal(model: Mapping[str, Tensor]) -> State:
    from kfl.engine.objectives import PERSONAL

    return {PERSONAL + name: value for name, value in model.items()}
