"""What the proof of Theorem 1 rests on, measured at a run's own models: Lemmas 1 and 2, and equation (5).

The lemmas are about one round of plain gradient descent on one device, equations (7) and (8). That round is played
here, in double precision, and both sides are compared. The right sides need L_u, L_v, χ, G_1 and G_2, for which there
are only estimates, lower bounds of the true ones: where an inequality fails, the estimates are too small for it, and
the lemma itself is not refuted.

Equation (5) defines the knowledge of a class over *all* devices; the server has that of the devices that reported,
equation (9). The proof bounds the distance between the two by 2 ς (1 − the reported part of the class's samples).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kfl.core.text import percent
from kfl.engine.objectives import FeatureTargets, class_loss, feature_loss
from kfl.models import parts
from reproduction.theory._bound import Constants
from reproduction.theory._curvature import Loss

FloatArray = NDArray[np.float64]
ROUNDING, SINGLE_PRECISION = 1e-9, 1e-5
"""An inequality may fail by this part of its larger side; knowledge was averaged in single precision."""


@dataclass(frozen=True)
class LocalRound:
    """One round of plain gradient descent on one device, against both lemmas."""

    device: int
    change: float
    """F_k(w_{t+1}) − F_k(w_t), measured."""
    lemma1: float
    """Right side of Lemma 1 for the two models."""
    lemma2: float
    """Right side of Lemma 2, as printed."""

    @property
    def holds(self) -> tuple[bool, bool]:
        """Whether the change is no larger than the right side, for each lemma."""
        return _at_most(self.change, self.lemma1), _at_most(self.change, self.lemma2)


@dataclass(frozen=True)
class LemmaCheck:
    """Both lemmas for a round of each device that was looked at, from the same kind of models, at the same rates."""

    start: str
    """Where the rounds began: "first models" or "last models"."""
    rates: str
    """The learning rates: "the run's" or "the best"."""
    within_conditions: bool
    """Whether the rates are as small as Lemma 2 asks for."""
    rounds: tuple[LocalRound, ...]

    @property
    def tightest(self) -> LocalRound:
        """The round in which Lemma 2 leaves the least room."""
        return min(self.rounds, key=lambda one: one.lemma2 - one.change)

    @property
    def verdict(self) -> str:
        """In words: on how many devices the lemmas hold with these constants."""
        count = len(self.rounds)
        failed = [count - sum(one.holds[lemma] for one in self.rounds) for lemma in (0, 1)]
        said = [f"Lemma {lemma + 1} fails on {failed[lemma]} of {count}" for lemma in (0, 1) if failed[lemma]]
        found = "; ".join(said) if said else "both hold"
        return found if self.within_conditions else f"{found}, outside Lemma 2's conditions"


def local_round(
    device: int,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    constants: Constants,
    knowledge: tuple[Tensor, Tensor] | None = None,
    loss: Loss = class_loss,
) -> LocalRound:
    """Play τ steps of equations (7) and (8) from a model, and evaluate both lemmas for them; the model stays as it is.

    `knowledge` is Ω and which classes it covers; without it there is no knowledge loss.

    >>> from kfl.models import mlp
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    >>> c = Constants(50.0, 50.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.001, 0.001, 5, 0.0, 2.3)
    >>> found = local_round(0, mlp(width=8), x, y, c)
    >>> found.change < 0, found.holds
    (True, (True, True))
    """
    c, tau = constants, constants.local_steps
    moved = copy.deepcopy(model).double().eval()
    body, head = parts(moved)
    u = [weight for weight in body.parameters() if weight.requires_grad]
    v = [weight for weight in head.parameters() if weight.requires_grad]
    before = [weight.detach().clone() for weight in (*u, *v)]
    x = inputs.double() if inputs.is_floating_point() else inputs
    pull = None if knowledge is None else FeatureTargets(c.knowledge_weight, knowledge[0].double(), knowledge[1])
    first: list[Tensor] = []
    start, squares = 0.0, []
    for step in range(tau):
        features = body(x)
        value = loss(head(features), labels)
        slope = list(torch.autograd.grad(value, [*u, *v], retain_graph=True, materialize_grads=True))
        away = _knowledge_slope(features, labels, pull, u)
        if step == 0:
            start, first = float(value.detach()), [part.clone() for part in slope]
        squares.append(_square(away))
        with torch.no_grad():
            for weight, own, other in zip(u, slope[: len(u)], away, strict=True):
                weight.sub_(c.body_rate * (own + c.knowledge_weight * other))
            for weight, own in zip(v, slope[len(u) :], strict=True):
                weight.sub_(c.head_rate * own)
    with torch.no_grad():
        change = float(loss(head(body(x)), labels)) - start
    step_u = [weight.detach() - old for weight, old in zip(u, before[: len(u)], strict=True)]
    step_v = [weight.detach() - old for weight, old in zip(v, before[len(u) :], strict=True)]
    slope_u, slope_v = first[: len(u)], first[len(u) :]
    return LocalRound(
        device, change, _lemma1(c, slope_u, slope_v, step_u, step_v), _lemma2(c, slope_u, slope_v, squares)
    )


def _knowledge_slope(
    features: Tensor, labels: Tensor, pull: FeatureTargets | None, u: Sequence[Tensor]
) -> list[Tensor]:
    """∇L_k of equation (6) in the body's weights."""
    if pull is None or not u:
        return [torch.zeros_like(weight) for weight in u]
    value = feature_loss(features.flatten(1), labels, pull)
    return list(torch.autograd.grad(value, list(u), materialize_grads=True))


def _lemma1(
    c: Constants,
    slope_u: Sequence[Tensor],
    slope_v: Sequence[Tensor],
    step_u: Sequence[Tensor],
    step_v: Sequence[Tensor],
) -> float:
    """⟨∇_u F, u' − u⟩ + (1 + χ)/2 L_u ‖u' − u‖², and the same for v."""
    bend = (1 + c.cross_sensitivity) / 2
    straight = _dot(slope_u, step_u) + _dot(slope_v, step_v)
    return straight + bend * (c.body_smoothness * _square(step_u) + c.head_smoothness * _square(step_v))


def _lemma2(c: Constants, slope_u: Sequence[Tensor], slope_v: Sequence[Tensor], squares: Sequence[float]) -> float:
    """Equation (18), as printed; `squares` are ‖∇L_k‖² at each of the τ steps."""
    eta_u, eta_v, tau, curve = c.body_rate, c.head_rate, c.local_steps, 1 + c.cross_sensitivity
    L_u, L_v, pull = c.body_smoothness, c.head_smoothness, c.knowledge_weight**2
    own = (2 * curve * L_u * eta_u**2 * tau**2 - eta_u * tau / 2) * _square(slope_u)
    own += (curve * L_v * eta_v**2 * tau**2 - eta_v * tau / 2) * _square(slope_v)
    bend = 3 * eta_u * L_u**2 + 2 * eta_v * c.cross_sensitivity**2 * L_u * L_v
    late = sum((tau - step) * square for step, square in enumerate(squares))
    return own + c.drift + 1.25 * eta_u * pull * sum(squares) + 2 * eta_u**2 * pull * bend * late


@dataclass(frozen=True, eq=False)
class KnowledgeGap:
    """Equation (5) against what the server holds after the last round, class by class."""

    classes: NDArray[np.int64]
    """Classes that the server knows."""
    distance: FloatArray
    """‖Ω̄_c − Ω_c‖: the knowledge of all devices, and the server's."""
    norm: FloatArray
    """‖Ω̄_c‖."""
    allowed: FloatArray
    """2 ς (1 − Σ_k α_k D_{k,c}/D_c) with the devices that reported in the last round."""

    @property
    def largest(self) -> int:
        """The position of the class with the largest distance."""
        return int(self.distance.argmax())

    @property
    def holds(self) -> bool:
        """Whether no distance is larger than the proof of Theorem 1 allows."""
        return bool((self.distance <= self.allowed + SINGLE_PRECISION * self.norm).all())

    def __str__(self) -> str:
        worst = self.largest
        part = self.distance[worst] / self.norm[worst] if self.norm[worst] > 0 else 0.0
        return (
            f"Equation (5): the knowledge of all devices and what the server holds, equation (9), are at most "
            f"{self.distance[worst]:.4g} apart (class {self.classes[worst]}, {percent(part, 0)} of its norm). The "
            f"proof of Theorem 1 allows {self.allowed[worst]:.4g} there: {'holds' if self.holds else 'violated'}."
        )


def knowledge_gap(
    modules: Iterable[tuple[nn.Module, Tensor, Tensor]],
    knowledge: FloatArray,
    known: NDArray[np.bool_],
    reported: NDArray[np.bool_],
) -> KnowledgeGap | None:
    """Equation (5) over all devices' models, inputs and labels; None where the server knows no class.

    `knowledge` (C, p) and `known` (C,) are the server's, `reported` (K,) says who reported in the last round.
    """
    classes, features = knowledge.shape
    total, count = torch.zeros(classes, features, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    heard, longest = torch.zeros(classes, dtype=torch.float64), 0.0
    for (model, inputs, labels), reports in zip(modules, reported, strict=True):
        with torch.no_grad():
            h = parts(model.eval())[0](inputs).flatten(1).double()
        mine = torch.bincount(labels, minlength=classes).double()
        total.index_add_(0, labels, h)
        count += mine
        heard += mine * float(reports)
        longest = max(longest, float(h.norm(dim=1).max()))
    told = np.flatnonzero(known & (count.numpy() > 0))
    if not len(told):
        return None
    everybody = (total[told] / count[told, None]).numpy()
    return KnowledgeGap(
        classes=told,
        distance=np.linalg.norm(everybody - knowledge[told], axis=1),
        norm=np.linalg.norm(everybody, axis=1),
        allowed=2 * longest * (1 - (heard[told] / count[told]).numpy()),
    )


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return float(sum((a.double() * b.double()).sum() for a, b in zip(left, right, strict=True)))


def _square(vectors: Sequence[Tensor]) -> float:
    return _dot(vectors, vectors)


def _at_most(left: float, right: float) -> bool:
    return left <= right + ROUNDING * max(abs(left), abs(right))
