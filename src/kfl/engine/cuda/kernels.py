"""GPU kernel dispatch: which networks and losses have handwritten kernels for a cohort, and the work itself.

It runs on a CPU too, where `kfl.engine.autograd` is faster; tests use it there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from kfl.engine.cuda.closed_form import CLOSED_FORMS
from kfl.engine.cuda.convolutions import Convolutions, choose_convolutions
from kfl.engine.cuda.mixture import mixture_names, train_cohort_mixture
from kfl.engine.cuda.network import CohortNetwork, run_cohort, train_cohort
from kfl.engine.objectives import MIXING, Descent, Mixture, Objective
from kfl.engine.precision import Arithmetic
from kfl.engine.samples import Batch
from kfl.models import State
from kfl.models.network import Convolution, Network

Trainer = Callable[[State, Sequence[Callable[[], Batch]], Objective], State]
"""(stacked state, how to read the batch of each step, loss) → trained stacked state."""
Runner = Callable[[State, Tensor], tuple[Tensor, Tensor]]
"""(stacked state, inputs with one row per device) → (features, logits)."""


class CohortKernels:
    """Hand-written passes for the cohorts of an engine, on one processor."""

    def __init__(self, arithmetic: Arithmetic, where: torch.device, *, convolution: str, enabled: bool) -> None:
        """`convolution` is one of `kfl.engine.cuda.convolutions.WAYS`; not `enabled`: every answer is None."""
        self._arithmetic = arithmetic
        self._where = where
        self._way = convolution
        self._enabled = enabled
        self._convolutions: dict[tuple[Convolution, ...], Convolutions] = {}

    def trainer(
        self, network: Network | None, objective: Objective, names: Collection[str], descent: Descent
    ) -> Trainer | None:
        """Return the handwritten training of a cohort, or None for the general path.

        `names` are the entries of the states that are trained. The objective that is then given to the trainer is this
        one with tensors of its own.
        """
        if network is None or type(objective) not in CLOSED_FORMS or not self._enabled:
            return None
        names, own, mixture = set(names), set(network.parameters), isinstance(objective, Mixture)
        if names != (mixture_names(own) if mixture else own):
            return None
        # A parameter that does not move is no part of the mixture.
        if mixture and not names - {MIXING} <= descent.rates.keys():
            return None
        work, passes = (train_cohort_mixture if mixture else train_cohort), self._passes(network)
        return lambda state, steps, objective: work(passes, state, steps, objective, descent)

    def runner(self, network: Network | None) -> Runner | None:
        """Return the handwritten features and logits of a cohort, or None for the general path."""
        if network is None or not self._enabled:
            return None
        passes = self._passes(network)
        return lambda state, inputs: run_cohort(passes, state, inputs)

    def describe(self, network: Network | None) -> str | None:
        """What runs for a network, and why; None: the general path."""
        if network is None or not self._enabled:
            return None
        way = self._passes(network).convolutions
        return "fused" if way is None else f"fused, convolutions by {way.name}: {way.reason}"

    def _passes(self, network: Network) -> CohortNetwork:
        return CohortNetwork(network, self._arithmetic, self._ways(network.convolutions))

    def _ways(self, layers: tuple[Convolution, ...]) -> Convolutions | None:
        """How the convolutions of a network are done, decided when they are first needed; None without any."""
        if layers and layers not in self._convolutions:
            self._convolutions[layers] = choose_convolutions(self._way, layers, self._arithmetic, self._where)
        return self._convolutions.get(layers)
