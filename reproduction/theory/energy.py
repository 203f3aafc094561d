"""Every joule of a run, its budgets and queues, and Proposition 2's inequality on its energy.

>>> account = EnergyAccount(
...     compute_j=np.array([[0.3, 0.0], [0.3, 0.2]]), upload_j=np.full((2, 2), 1e-8), budget_j=np.array([0.4, 1.0])
... )
>>> account.left_j.round(3), account.queue_j[-1].round(3)
(array([-0.2,  0.8]), array([0.2, 0. ]))
>>> account.dominant()
'The processor dominates: computation takes 100.00 % of the energy, the uplink 0.00 %.'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.core.text import percent
from kfl.scheduling.energy_report import dominant
from kfl.simulation import RoundLog

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EnergyAccount:
    """Every joule of a run: one row per round, one column per device."""

    compute_j: FloatArray
    upload_j: FloatArray
    budget_j: FloatArray
    """Each device's budget for the whole run, E_k; infinite where there is none."""

    def __post_init__(self) -> None:
        shape = np.shape(self.compute_j)
        if len(shape) != 2 or np.shape(self.upload_j) != shape or np.shape(self.budget_j) != shape[1:]:
            shapes = (shape, np.shape(self.upload_j), np.shape(self.budget_j))
            raise ConfigError("shapes of compute_j, upload_j, budget_j", shapes, "(T, K), (T, K) and (K,)")

    @property
    def rounds(self) -> int:
        """The number of rounds T."""
        return len(self.compute_j)

    @property
    def energy_j(self) -> FloatArray:
        """α_k,t E_k,t: computation and upload together, (T, K)."""
        return self.compute_j + self.upload_j

    @property
    def left_j(self) -> FloatArray:
        """What each device has left of its budget; negative where it overspent."""
        return np.asarray(self.budget_j - self.energy_j.sum(axis=0))

    @property
    def queue_j(self) -> FloatArray:
        """Virtual queues before each round and after the last, (T + 1, K), by equation (21)."""
        queues = np.zeros((self.rounds + 1, len(self.budget_j)))
        allowance_j = self.budget_j / max(self.rounds, 1)
        for t, spent_j in enumerate(self.energy_j):
            queues[t + 1] = np.maximum(queues[t] + spent_j - allowance_j, 0.0)
        return queues

    def dominant(self) -> str:
        """Whether the uplink or the processor decided what this run cost, in words."""
        return dominant(self.compute_j, self.upload_j)


@dataclass(frozen=True)
class EnergyBound:
    """Proposition 2's inequality on the energy, for one finished run that it covers."""

    spent_j: float
    """Left side: Σ_t Σ_k α E."""
    budget_j: float
    """Σ_k E_k."""
    slack_j: float
    """√(2K (T ζ_0 + V Σ_t γ_t D)): by how much the run may exceed the budgets."""
    slack_at_zero_v_j: float
    """The same at V = 0."""
    everybody_j: float | None = None
    """What all devices in every round would spend, at what each round really costs and with the band shared to spend
    least; None where that is not known. A schedule that shares the band in another way can spend more."""

    @property
    def limit_j(self) -> float:
        """Right side: budgets and slack."""
        return self.budget_j + self.slack_j

    @property
    def holds(self) -> bool:
        """Left side ≤ right side."""
        return self.spent_j <= self.limit_j

    @property
    def vacuous(self) -> bool | None:
        """Whether even a run that lets every device take part in every round would satisfy it; None where unknown.

        An inequality that is not vacuous in this sense may still say little: compare slack and budget.
        """
        if math.isinf(self.limit_j):
            return True
        return None if self.everybody_j is None else self.limit_j >= self.everybody_j

    def __str__(self) -> str:
        verdict = "violated." if not self.holds else ("vacuous." if self.vacuous else "holds.")
        if self.everybody_j is not None:
            even = (
                "Even all devices in every round would satisfy it, with"
                if self.vacuous
                else "All devices in every round:"
            )
            verdict += f" {even} {self.everybody_j:.4g} J."
        return (
            f"Proposition 2, energy: {self.spent_j:.4g} J spent ≤ {self.budget_j:.4g} J budget + {self.slack_j:.4g} J "
            f"slack ({percent(self.slack_j / self.budget_j, 0)} of the budget; {self.slack_at_zero_v_j:.4g} J even at "
            f"V = 0): {verdict}"
        )


def why_not_covered(scheduler: str, *, minimises_drift: bool, hard_budget: bool, batteries: bool = False) -> str | None:
    """Why Proposition 2 does not apply to a run, in words; None where it does.

    >>> why_not_covered("uniform", minimises_drift=False, hard_budget=False)
    'does not apply: it is about schedulers that minimize the drift-plus-penalty in every round, and uniform does not'
    """
    if not minimises_drift:
        about = "it is about schedulers that minimize the drift-plus-penalty in every round"
        return f"does not apply: {about}, and {scheduler} does not"
    if batteries:
        return "does not apply: it is about budgets of so much per round, and here devices live on batteries"
    if hard_budget:
        return "does not apply: it is about budgets that a round may exceed, and here they are hard"
    return None


def proposition2_energy(
    account: EnergyAccount,
    samples: FloatArray,
    v: float,
    gamma: FloatArray,
    everybody_j: float | None = None,
) -> EnergyBound:
    """Evaluate Proposition 2's energy inequality (31), as printed, for a finished run.

        Σ_t Σ_k α E ≤ Σ_k E_k + √(2K (T ζ_0 + V Σ_t γ_t D)),
        ζ_0 = ½ Σ_k ζ_k²,    ζ_k = max_t |α_k,t E_k,t − E_k/T|,    D = Σ_k D_k.

    `gamma` holds γ_t of every round. `everybody_j` is what all devices in every round would spend, for judging whether
    the inequality says anything (`everybody_energy`); without it, that is left open.

    >>> account = EnergyAccount(np.full((4, 2), 0.1), np.zeros((4, 2)), np.full(2, 0.4))
    >>> bound = proposition2_energy(account, np.full(2, 600.0), v=0.01, gamma=np.ones(4), everybody_j=0.8)
    >>> round(bound.slack_j, 2), bound.holds, bound.vacuous
    (13.86, True, True)
    """
    rounds, devices = account.energy_j.shape
    if np.shape(gamma) != (rounds,):
        raise ConfigError("gamma", np.shape(gamma), f"one weight for each of the {rounds} rounds")
    finite = np.isfinite(account.budget_j)
    bias = np.abs(account.energy_j - account.budget_j / max(rounds, 1)).max(axis=0, initial=0.0)
    zeta = 0.5 * float(np.sum(bias[finite] ** 2)) if finite.all() else math.inf
    penalty = v * float(np.sum(gamma)) * float(np.sum(samples))
    return EnergyBound(
        spent_j=float(np.sum(account.energy_j)),
        budget_j=float(np.sum(account.budget_j)),
        slack_j=math.sqrt(2 * devices * (rounds * zeta + penalty)),
        slack_at_zero_v_j=math.sqrt(2 * devices * rounds * zeta),
        everybody_j=everybody_j,
    )


def energy_account(logs: Sequence[RoundLog], budget_j: FloatArray) -> EnergyAccount:
    """Every joule of a run, one row per round and one column per device."""
    compute_j, upload_j = np.zeros((2, len(logs), len(budget_j)))
    for row, log in enumerate(logs):
        compute_j[row, list(log.devices)] = log.compute_energy_j
        upload_j[row, list(log.devices)] = log.upload_energy_j
    return EnergyAccount(compute_j, upload_j, budget_j)
