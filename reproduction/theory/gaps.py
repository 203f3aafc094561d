"""What the proofs leave open, as data: the one list that `python -m reproduction bound` prints and the docs show.

Each gap that code can show has a test that does, in `tests/reproduction/theory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PAGE = "docs/paper.md"
"""Where the gaps are worked out."""


@dataclass(frozen=True)
class Gap:
    """One step of a proof that does not hold as written, or an assumption that runs do not meet."""

    name: str
    about: Literal["Theorem 1", "Proposition 2"]
    step: str
    """Where it is."""
    says: str
    """What is wrong with it, in a sentence."""
    shown: str = ""
    """What a test shows of it; empty where there is nothing to compute."""


GAPS: tuple[Gap, ...] = (
    Gap(
        "gradient against gap",
        "Theorem 1",
        "the step that gives A₃",
        "‖∇F‖² ≤ 2L(F − F*) stands behind a negative coefficient, where a lower bound on ‖∇F‖² (a Polyak–Łojasiewicz "
        "condition) is needed.",
        "The theorem is false: for log cosh, which meets all assumptions, after 20 rounds gradient descent is at "
        "more than twice the printed bound.",
    ),
    Gap(
        "unscheduled devices",
        "Theorem 1",
        "first step",
        "Lemma 2 is applied to all K devices, though those that are not scheduled do not train.",
        "The theorem is false: with λ = 0 and no device scheduled, the bound falls below a loss that cannot move.",
    ),
    Gap(
        "class factor",
        "Theorem 1",
        "the step to 8ϑ²ς²",
        "A factor C Σ_c D²_{k,c}/D²_k is dropped.",
        "It is 5 at two classes out of ten, and never below 1.",
    ),
    Gap(
        "step factor",
        "Theorem 1",
        "Lemma 2, last sum",
        "Σ_l l Σ_{n<l} is printed as Σ_l (τ − l), without the factor l.",
        "For equal gradients it is 30 against 15 at τ = 5.",
    ),
    Gap(
        "largest rates",
        "Theorem 1",
        "(1 − A₃ᵀ)/(1 − A₃)",
        "It is 0/0 at the largest allowed rates, where A₃ = 1.",
        "The limit T is used.",
    ),
    Gap(
        "which rounds",
        "Theorem 1",
        "Remark 1",
        "The weight A₃^{T−2−t} of round t grows with t where A₃ < 1: the bound favors late rounds, the remark says "
        "early ones; and the last round does not enter at all.",
        "Ascend has the smallest bound, descend the largest.",
    ),
    Gap(
        "smoothness",
        "Theorem 1",
        "Assumption 1",
        "A network with ReLU has no Lipschitz gradient.",
    ),
    Gap(
        "plain descent",
        "Theorem 1",
        "equations (7) and (8)",
        "The theorem is about plain gradient descent; the paper's experiments use momentum.",
    ),
    Gap(
        "exact minimization",
        "Proposition 2",
        "data inequality",
        "It assumes that each round is minimized exactly, which Algorithm 3 does not do. The energy inequality needs "
        "only that no round is worse than scheduling no device.",
        "Where the band is scarce, Algorithm 3 misses the best set in more than a quarter of the rounds of a "
        "brute-force test.",
    ),
    Gap(
        "offline rounds",
        "Proposition 2",
        "data inequality, ζ_k",
        "ζ_k is the largest bias of the run's own rounds; the proof needs it to cover the offline optimum's too.",
    ),
    Gap(
        "per device",
        "Proposition 2",
        "energy inequality",
        "It bounds the sum over all devices, while the budgets (14a) are each device's own.",
    ),
)
"""The gaps of the proofs, in the order of the paper's argument."""
