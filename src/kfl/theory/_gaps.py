"""What the proof of Theorem 1 leaves open, as data; each gap that code can show has a test that does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Gap:
    """One step of the proof that does not hold as written."""

    name: str
    step: str
    """Where it is."""
    says: str
    """What is wrong with it, in a sentence."""


GAPS: tuple[Gap, ...] = (
    Gap(
        "gradient against gap",
        "Theorem 1, the step that gives A_3",
        "‖∇F‖² ≤ 2L (F − F*) stands behind a negative coefficient, where a lower bound on ‖∇F‖² (a "
        "Polyak–Łojasiewicz condition) is needed: for the smooth loss log cosh the printed bound is false.",
    ),
    Gap(
        "unscheduled devices",
        "Theorem 1, first step",
        "Lemma 2 is applied to all K devices, though those that are not scheduled do not train: with λ = 0 the printed "
        "bound falls the same way when nobody is ever scheduled.",
    ),
    Gap(
        "class factor",
        "Theorem 1, the step to 8ϑ²ς²",
        "A factor C Σ_c D_{k,c}²/D_k² is dropped; it is never below 1, and 5 for two equal classes out of ten.",
    ),
    Gap(
        "step factor",
        "Lemma 2, last sum",
        "Σ_l l Σ_{n<l} is printed as Σ_l (τ − l), without the factor l: for equal gradients 30 against 15 at τ = 5.",
    ),
    Gap(
        "largest rates",
        "Theorem 1, the quotient",
        "At the largest allowed rates A_3 = 1, where (1 − A_3^T)/(1 − A_3) is 0/0; its limit T is used here.",
    ),
    Gap(
        "which rounds",
        "Remark 1",
        "The weight of round t is A_3^{T−2−t} with A_3 < 1, which grows with t: as printed the bound favours late "
        "rounds, where the remark says early ones; and the last round does not enter at all.",
    ),
)
"""The gaps of the proof, in the order of the paper's argument."""


def class_factor(counts: NDArray[np.generic]) -> NDArray[np.float64]:
    """C Σ_c D_{k,c}²/D_k² of each device: the factor that the step to 8ϑ²ς² drops.

    >>> class_factor(np.array([[300, 300] + [0] * 8, [60] * 10]))
    array([5., 1.])
    """
    samples = np.asarray(counts, dtype=np.float64)
    return np.asarray(samples.shape[1] * np.square(samples).sum(axis=1) / np.square(samples.sum(axis=1)))


def step_sums(local_steps: int) -> tuple[int, int]:
    """Σ_l l Σ_{n<l} 1, which Lemma 2's proof arrives at, and Σ_l (τ − l), which it prints, for l from 0 to τ − 1.

    >>> step_sums(5)
    (30, 15)
    """
    return sum(step * step for step in range(local_steps)), sum(local_steps - step for step in range(local_steps))
